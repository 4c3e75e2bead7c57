"""How an arm and its T-twin drift apart: `lightning_app.measures.weights.twins` after steps and after epochs."""

import logging
import time
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.utilities import rank_zero_only
from torch import nn
from typing_extensions import override

from callbacks.clock import epochs_done
from callbacks.log import LoggingCallback, log_results
from callbacks.protocol import gather_members, metrics_of, owner_of, why_unseen
from lightning_app.common.errors import at_least
from lightning_app.common.isolation import wait_for
from lightning_app.measures import Divergence, SignWatch, TwinHistory, twin_divergence
from lightning_app.runs.members import Member, named_members

log = logging.getLogger(__name__)

Twins = tuple[Member, Member]  # the original and its twin


class TwinDivergence(LoggingCallback):
    """Logs, for every member that is the twin of another (``twin_of``), how far apart the two are. Does nothing without twins.

    Definition:
        T adds the identity to a residual net's weights: p = T(r) is the plain net with the same function. T is a translation,
        so twins that see the same batches and decay towards the same function keep p = T(r) in exact arithmetic. It logs
        ``max |T⁻¹(p) - r|`` after steps and epochs, the first ReLU input that is positive in only one of the nets (a sign
        flip), and fits how the difference grows before and after it.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``twin/divergence`` | 1 | the largest difference of all parameters; from epoch 0 on |
        | ``twin/divergence_id``, ``twin/divergence_other`` | 1 | of the ID entries, of the others |
        | ``twin/risk_difference`` | nats | absolute difference of the training risks, running ones without evaluation |
        | ``twin/growth/<field>`` | below | fitted laws: fields of `Growth` |
        | ``twin/first_flip_step`` | step | first whose batch had a ReLU input > 0 in one net only; NaN while none |
        | ``twin/first_flip_layer`` | layer | the first one with flips in that step |
        | ``twin/first_flip_units`` | units | how many flipped there |
        | ``twin/first_flip_original``, ``twin/first_flip_twin`` | ReLU input | the pair of values that lay furthest apart |
        | ``twin/layer02_at_start`` | ReLU input | largest difference at layer 2 in the first batch |
        | ``twin/layer02_after_one_step`` | ReLU input | the same in the second batch |
        | ``twin/layer02_at_start_mean``, ``twin/layer02_after_one_step_mean`` | ReLU input | the mean instead |
        | ``twin/steps/<field>`` | below | arrays of the epoch's steps: fields of `StepRecord` |
        | ``cost/twin`` | s | what watching and comparing took |

    Interpretation:
        Rounding alone separates the twins: depth 20 on CIFAR-10 in float64 1.1e-16 after the first step, 2.0e-15 after 100,
        4.5e-14 after 600, without a flip; in float32 1.1e-7, 5.7e-4 and 0.11, the first flip in step 3. A much larger
        difference in the first steps means that the two are not trained alike: a penalty around the wrong centre
        (``decay_towards: zero``) gives lr · wd at the ID entries after one step, 1.00e-6 there, and 7e-18 elsewhere.

    Cost:
        A comparison of weights is about a hundredth of a gradient of a batch; watching for flips keeps one
        net's activations for one pass, until the first is found.

    Breaks:
        * Optimizers whose update is not invariant to a shift of the weights (decoupled decay as in AdamW, LARS, LAMB)
          train other nets.
        * In float64 the twins are identical at epoch 0: their weights were drawn in float32, and the low bits that T would lose
          are 0.
        * Compiled nets run no hooks: no flips are found, and a warning says so.
        * Growth is fitted below a divergence of 1e-3: beyond it the twins are two nets like any other. A large fit
          error means that this is not the law.
        * If batches are split over ranks, risks and flips are those of rank zero's part; if nets are, the rank that trains a
          pair watches its steps.
        * It needs a module like that of `fit`: ``members`` with ``twin_of``, ``metrics()``, a ``training_step`` that returns
          ``{"risks": {name: loss}}``, and nets with ``residual`` and ``id_weights()``.
        * It uses training's own passes, and all ranks exchange results: an error in it stops the run.

    Source:
        Yu & Tomasi (2019), section 4.1 and SM B, Table 2 and Fig. 6.

    Args:
        every_n_steps: number of steps between comparisons of the weights; they are also compared after step 1.
        watch_signs: look for the first sign flip, in training's own forward passes, until it is found. Compiled
            nets are not watched.
    """

    def __init__(self, every_n_steps: int = 1, watch_signs: bool = True) -> None:
        self.every_n_steps = at_least(1, "TwinDivergence", every_n_steps=every_n_steps)
        self.watch_signs = watch_signs
        self._pairs: dict[str, Twins] = {}  # by the twin's name, like all that follow
        self._histories: dict[str, TwinHistory] = {}
        self._owners: dict[str, int] = {}  # the rank that trains the pair
        self._mine: dict[str, Twins] = {}
        self._strategy: pl.strategies.Strategy | None = None
        self._watching = False
        self._watches: dict[str, SignWatch] = {}  # only while a batch is trained on
        self._logged = 0.0  # of the seconds spent, those that were logged

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        members = named_members(pl_module)
        self._pairs = {twin.name: (members[twin.twin_of], twin) for twin in members.values() if twin.twin_of}
        if not self._pairs:
            return
        known = self._histories if trainer.global_step else {}  # else they are of an earlier fit
        if trainer.global_step and not known:
            log.warning(
                f"TwinDivergence starts at step {trainer.global_step} of a resumed run: first flip and growth refer to later "
                "steps only."
            )
        self._histories = {name: known.get(name, TwinHistory()) for name in self._pairs}
        self._owners = {name: owner_of(pl_module, name) for name in self._pairs}
        self._mine = {name: pair for name, pair in self._pairs.items() if self._owners[name] == trainer.global_rank}
        self._strategy = trainer.strategy
        obstacle = why_unseen(member.net for pair in self._pairs.values() for member in pair)
        self._watching = self.watch_signs and not obstacle
        if self.watch_signs and obstacle:
            log.warning(f"Sign flips between twins are not watched: {obstacle}.")
        if trainer.global_step == 0:
            self._log(trainer, 0, self._distances(pl_module))

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        done = trainer.global_step
        for name, (original, twin) in self._mine.items():
            if self._watching and self._histories[name].wants_watching(done):
                self._watches[name] = SignWatch(original.net, twin.net, self._histories[name].layer_to_compare(done))

    @property
    def watching(self) -> bool:
        """Whether this step's passes are looked at: then they must run, and not be a replay."""
        return bool(self._watches)

    @override
    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """The passes are over; what measures run at the end of the batch is not looked at."""
        for watch in self._watches.values():
            watch.stop()

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_: Any) -> None:
        if not self._mine:
            return
        step = trainer.global_step
        compares = step == 1 or step % self.every_n_steps == 0
        if compares:
            wait_for(pl_module.device)
        start = time.perf_counter()
        for name, watch in self._stop_watching().items():
            self._histories[name].note(watch, step - 1)
            self.spent += watch.seconds
        if compares:
            for name, (original, twin) in self._mine.items():
                gap = _divergence(original.net, twin.net)
                risks = [float(outputs["risks"][member.name]) for member in (original, twin)]
                self._histories[name].steps.append([step, gap.divergence, gap.divergence_id, *risks])
        self.spent += time.perf_counter() - start

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop_watching()

    def _stop_watching(self) -> dict[str, SignWatch]:
        stopped, self._watches = self._watches, {}
        for watch in stopped.values():
            watch.stop()
        return stopped

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._pairs:
            return
        wait_for(pl_module.device)
        start = time.perf_counter()
        if not trainer.is_last_batch:  # training ends here
            gather_members(pl_module)
        results = self._distances(pl_module)
        self._exchange()
        for name, history in self._histories.items():
            if history.steps:
                results[name]["twin/steps"] = history.take_steps()
            results[name] |= {f"twin/{key}": value for key, value in history.scalars().items()}
        self.spent += time.perf_counter() - start
        self._log(trainer, epochs_done(trainer), results)

    def _distances(self, pl_module: pl.LightningModule) -> dict[str, dict[str, Any]]:
        """Divergence and difference of risks as they stand; on all ranks, because the metrics sum over them."""
        metrics = metrics_of(pl_module, self)
        results: dict[str, dict[str, Any]] = {}
        for name, (original, twin) in self._pairs.items():
            results[name] = {"twin": _divergence(original.net, twin.net)}
            ours, theirs = metrics[name], metrics[original.name]
            if risk := next((key for key in ("train/risk", "train/risk_running") if key in ours), None):
                results[name]["twin/risk_difference"] = abs(ours[risk] - theirs[risk])
        return results

    def _exchange(self) -> None:
        """All ranks get what the one that trains a pair has noted; nothing to do where that is rank zero for all."""
        if self._strategy is not None and any(self._owners.values()):
            for name, owner in self._owners.items():
                self._histories[name] = self._strategy.broadcast(self._histories[name], owner)

    @rank_zero_only
    def _log(self, trainer: pl.Trainer, epoch: float, results: dict[str, dict[str, Any]]) -> None:
        log_results(trainer, epoch, "twin", results, {"cost/twin": self.spent - self._logged}, self.strict)
        self._logged = self.spent

    @override
    def state_dict(self) -> dict[str, Any]:
        """Series as tensors: plain lists of a long run would be slow to save. On all ranks, as Lightning calls it."""
        self._exchange()
        return {name: history.state_dict() for name, history in self._histories.items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._histories = {name: TwinHistory.from_state_dict(state) for name, state in state_dict.items()}


def _divergence(original: nn.Module, twin: nn.Module) -> Divergence:
    plain, residual = (original, twin) if twin.residual else (twin, original)
    return twin_divergence(plain, residual)
