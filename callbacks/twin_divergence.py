"""How an arm and its T-twin drift apart: `lightning_app.measures.weights.twins` after steps and after epochs."""

import logging
import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor, nn
from typing_extensions import override

from callbacks.log import emit
from lightning_app.common.errors import UserError
from lightning_app.measures import Divergence, SignWatch, growth, twin_divergence

__all__ = ["TwinDivergence"]

log = logging.getLogger(__name__)

SECOND = "layer02"  # where the paper saw a difference of 1e-16 after one iteration
SECOND_KEYS = {0: f"{SECOND}_at_start", 1: f"{SECOND}_after_one_step"}  # by steps done before the batch

Pair = tuple[str, nn.Module, nn.Module]  # name of the original, its net, the twin's net


@dataclass(frozen=True)
class Steps:
    """What was recorded step by step during one epoch."""

    number: Tensor  # (n,) int64, optimizer steps done
    divergence: Tensor  # (n,) float64, after the step
    divergence_id: Tensor  # (n,) float64
    risk_original: Tensor  # (n,) float64, nats, of the step's batch, before the step
    risk_twin: Tensor  # (n,) float64
    risk_difference: Tensor  # (n,) float64, twin - original


@dataclass
class Drift:
    """All that is known of one pair: what a checkpoint keeps."""

    steps: list[list[float]] = field(default_factory=list)  # of the epoch under way: `Steps` but for the difference
    history: Tensor = field(default_factory=lambda: torch.empty(0, 2).double())  # before: (n, 2) number, divergence
    flip: dict[str, Any] | None = None  # the first one: step, and the fields of `Flip`
    second: dict[str, float] = field(default_factory=dict)  # |difference| of layer 2's ReLU inputs, by key

    def wants_watching(self, steps_done: int) -> bool:
        return self.flip is None or steps_done in SECOND_KEYS

    def note(self, watch: SignWatch, steps_done: int) -> None:
        """What the watch saw in the batch that came after so many steps."""
        if steps_done in SECOND_KEYS:
            key = SECOND_KEYS[steps_done]
            self.second |= {key: watch.gap.maximum, f"{key}_mean": watch.gap.mean}
        if self.flip is None and watch.flip is not None:
            self.flip = {"step": steps_done + 1, **asdict(watch.flip)}

    def take_steps(self) -> Steps:
        """The epoch's steps as arrays; the next epoch starts empty."""
        rows = torch.tensor(self.steps, dtype=torch.float64)
        self.steps, self.history = [], torch.cat([self.history, rows[:, :2]])
        number, divergence, divergence_id, original, twin = rows.unbind(1)
        return Steps(number.long(), divergence, divergence_id, original, twin, twin - original)

    def scalars(self) -> dict[str, float]:
        """Growth so far and the first flip."""
        flip_step = self.flip["step"] if self.flip else math.nan
        law = asdict(growth(*self.history.unbind(1), flip_step))
        numbers = {f"twin/growth/{name}": value for name, value in law.items()}
        numbers |= {f"twin/{name}": value for name, value in self.second.items()} | {"twin/first_flip_step": flip_step}
        if self.flip:
            place = int(self.flip["layer"].removeprefix("layer"))
            numbers |= {f"twin/first_flip_{name}": self.flip[name] for name in ("units", "original", "twin")}
            numbers["twin/first_flip_layer"] = place
        return numbers


class TwinDivergence(pl.Callback):
    """Logs, for every member that is the T-twin of another (``twin_of``), how far the two are apart. Else does nothing.

    Definition:
        T adds the identity to a residual net's weights: p = T(r) is the plain net with the same function. T is a
        translation, so twins that see the same batches and decay towards the same function keep p = T(r) in exact
        arithmetic. Measured is ``max |T⁻¹(p) - r|`` after steps and epochs, the first ReLU input that is positive in
        one net only (a sign flip), and the law of growth up to it and after.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``twin/divergence`` | weights | the largest difference of all parameters; from epoch 0 on |
        | ``twin/divergence_id``, ``twin/divergence_other`` | weights | of the ID entries, of the others |
        | ``twin/risk_difference`` | nats | size of the difference of the training risks, running ones without evaluation |
        | ``twin/growth/<field>`` | below | fitted laws: fields of `Growth` |
        | ``twin/first_flip_step`` | step | first whose batch had a ReLU input > 0 in one net only; NaN while none |
        | ``twin/first_flip_layer`` | layer | the first one with flips in that step |
        | ``twin/first_flip_units`` | units | how many flipped there |
        | ``twin/first_flip_original``, ``twin/first_flip_twin`` | ReLU input | the pair of values that lay furthest apart |
        | ``twin/layer02_at_start`` | ReLU input | largest difference at layer 2 in the first batch |
        | ``twin/layer02_after_one_step`` | ReLU input | the same in the second batch |
        | ``twin/layer02_at_start_mean``, ``twin/layer02_after_one_step_mean`` | ReLU input | the mean instead |
        | ``twin/steps/<field>`` | below | arrays of the epoch's steps: fields of `Steps` |
        | ``cost/twin`` | s | what watching and comparing took |

    Reading:
        Rounding alone parts the twins: depth 20 on CIFAR-10 in float64 1.1e-16 after the first step, 2.0e-15 after 100,
        4.5e-14 after 600, without a flip; in float32 1.1e-7, 5.7e-4 and 0.11, the first flip in step 3. Much more in
        the first steps means that the two are not trained alike: a penalty around the wrong centre (``decay_towards:
        zero``) gives lr · wd at the ID entries after one step, 1.00e-6 there, and 7e-18 elsewhere.

    Cost:
        A comparison of weights is 1.4 % of a gradient of 128 images, depth 20; watching for flips keeps one net's
        activations for one pass, until the first is found.

    Breaks:
        * Optimizers whose update is not invariant to a shift of the weights (decoupled decay as in AdamW, LARS, LAMB)
          train other nets.
        * In float64 the twins differ by nothing at epoch 0: their weights were drawn in float32, and the low bits that
          T would lose are 0.
        * Compiled nets and CUDA graphs run no hooks: no flips are seen, with a warning.
        * Growth is fitted below a divergence of 1e-3: beyond it the twins are two nets like any other. A large fit
          error says that this is not the law.
        * Where ranks share batches, risks and flips are those of rank zero's share; where they share nets, steps are
          watched by the rank that trains a pair.
        * It looks into training's own passes, and all ranks exchange what they saw: what it raises stops the run.

    Source:
        Yu & Tomasi (2019), section 4.1 and SM B, Table 2 and Fig. 6.

    Args:
        every_n_steps: compare the weights after step 1 and after every so many steps.
        watch_signs: look for the first sign flip, in training's own forward passes, until it is found. Nets that are
            compiled or in a CUDA graph are not watched: graphs run no hooks.

    Attributes:
        strict: let through what loggers raise.
    """

    strict = False

    def __init__(self, every_n_steps: int = 1, watch_signs: bool = True) -> None:
        if every_n_steps < 1:
            raise UserError(f"every_n_steps of TwinDivergence must be at least 1, got {every_n_steps}.")
        self.every_n_steps = every_n_steps
        self.watch_signs = watch_signs
        self._pairs: dict[str, Pair] = {}  # by the twin's name, like all that follow
        self._drifts: dict[str, Drift] = {}
        self._owners: dict[str, int] = {}  # the rank that trains the pair
        self._mine: dict[str, Pair] = {}
        self._strategy: pl.strategies.Strategy | None = None
        self._watching = False
        self._watches: dict[str, SignWatch] = {}  # only while a batch is trained on
        self._seconds = 0.0

    # -- before training ----------------------------------------------------------------------------------------------

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pairs = _twins(pl_module)
        if not self._pairs:
            return
        known = self._drifts if trainer.global_step else {}  # else they are of an earlier fit
        if trainer.global_step and not known:
            joins = "TwinDivergence joins at step %d: first flip and growth tell of what follows."
            log.warning(joins, trainer.global_step)
        self._drifts = {name: known.get(name, Drift()) for name in self._pairs}
        owners = getattr(pl_module, "owners", {})
        self._owners = {name: owners.get(name, 0) for name in self._pairs}
        self._mine = {name: pair for name, pair in self._pairs.items() if self._owners[name] == trainer.global_rank}
        self._strategy = trainer.strategy
        deaf = self._why_deaf(pl_module)
        self._watching = self.watch_signs and not deaf
        if self.watch_signs and deaf:
            log.warning("Sign flips between twins are not watched: %s.", deaf)
        if trainer.global_step == 0:
            self._emit(trainer, 0, self._distances(pl_module))

    def _why_deaf(self, pl_module: pl.LightningModule) -> str:
        """Why training's forward passes cannot be watched; "" when they can."""
        if any(_compiled(net) for _, *nets in self._pairs.values() for net in nets):
            return "compiled nets run no hooks (model.compile)"
        if pl_module.device.type == "cuda" and getattr(pl_module, "backend", "loop") != "loop":
            return "a CUDA graph runs no hooks (set model.backend to loop)"
        return ""

    # -- during a step ------------------------------------------------------------------------------------------------

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        done = trainer.global_step
        for name, (_, original, twin) in self._mine.items():
            if self._watching and self._drifts[name].wants_watching(done):
                self._watches[name] = SignWatch(original, twin, SECOND if done in SECOND_KEYS else None)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._mine:
            return
        start, step = time.perf_counter(), trainer.global_step
        for name, watch in self._stop_watching().items():
            self._drifts[name].note(watch, step - 1)
            self._seconds += watch.seconds
        if step == 1 or step % self.every_n_steps == 0:
            for name, (original_name, original, twin) in self._mine.items():
                gap = _divergence(original, twin)
                risks = [float(outputs["risks"][member]) for member in (original_name, name)]
                self._drifts[name].steps.append([step, gap.divergence, gap.divergence_id, *risks])
        self._seconds += time.perf_counter() - start

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop_watching()

    def _stop_watching(self) -> dict[str, SignWatch]:
        stopped, self._watches = self._watches, {}
        for watch in stopped.values():
            watch.stop()
        return stopped

    # -- after an epoch -----------------------------------------------------------------------------------------------

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._pairs:
            return
        start = time.perf_counter()
        results = self._distances(pl_module)
        self._exchange()
        for name, drift in self._drifts.items():
            if drift.steps:
                results[name]["twin/steps"] = drift.take_steps()
            results[name] |= drift.scalars()
        self._seconds += time.perf_counter() - start
        self._emit(trainer, trainer.current_epoch + 1, results)

    def _distances(self, pl_module: pl.LightningModule) -> dict[str, dict[str, Any]]:
        """Divergence and difference of risks as they stand; on all ranks, because the metrics sum over them."""
        metrics, results = pl_module.metrics(), {}
        for name, (original_name, original, twin) in self._pairs.items():
            results[name] = {"twin": _divergence(original, twin)}
            ours, theirs = metrics[name], metrics[original_name]
            if risk := next((key for key in ("train/risk", "train/risk_running") if key in ours), None):
                results[name]["twin/risk_difference"] = abs(ours[risk] - theirs[risk])
        return results

    def _exchange(self) -> None:
        """All ranks get what the one that trains a pair has noted; nothing to do where that is rank zero for all."""
        if any(self._owners.values()):
            for name, owner in self._owners.items():
                self._drifts[name] = self._strategy.broadcast(self._drifts[name], owner)

    @rank_zero_only
    def _emit(self, trainer: pl.Trainer, epoch: int, results: dict[str, dict[str, Any]]) -> None:
        emit(trainer, epoch, "twin", results, {"cost/twin": self._seconds}, self.strict)
        self._seconds = 0.0

    # -- checkpoints --------------------------------------------------------------------------------------------------

    @override
    def state_dict(self) -> dict[str, Any]:
        """Series as tensors: plain lists of a long run would be slow to save. On all ranks, as Lightning calls it."""
        self._exchange()
        return {name: _packed(drift) for name, drift in self._drifts.items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._drifts = {name: _unpacked(state) for name, state in state_dict.items()}


def _packed(drift: Drift) -> dict[str, Any]:
    return {
        "steps": torch.tensor(drift.steps, dtype=torch.float64),
        "history": drift.history,
        "flip": drift.flip,
        "second": drift.second,
    }


def _unpacked(state: dict[str, Any]) -> Drift:
    return Drift(state["steps"].tolist(), state["history"], state["flip"], dict(state["second"]))


def _twins(pl_module: pl.LightningModule) -> dict[str, Pair]:
    members = {member.name: member for member in getattr(pl_module, "members", ())}
    return {m.name: (m.twin_of, members[m.twin_of].net, m.net) for m in members.values() if m.twin_of is not None}


def _divergence(original: nn.Module, twin: nn.Module) -> Divergence:
    plain, residual = (original, twin) if twin.residual else (twin, original)
    return twin_divergence(plain, residual)


def _compiled(net: nn.Module) -> bool:
    """By `net.compile()` or by `torch.compile(net)`. PyTorch has no public question for the first."""
    return getattr(net, "_compiled_call_impl", None) is not None or hasattr(net, "_orig_mod")
