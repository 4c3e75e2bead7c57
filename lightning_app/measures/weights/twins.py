"""Equivalent training: how far a net and its T-twin drift apart (Yu & Tomasi 2019, section 4.1 and SM B, Fig. 6).

T is a translation, so twins that see the same batches and decay towards the same function keep ``p = T(r)`` at every
step, in exact arithmetic. In floating point they drift apart: added to 1, r loses its low bits, and ``W x + S x`` is summed in
another order than ``T(W) x``. The paper sees the gap grow very slowly and blames what remains on ReLUs: where a
pre-activation is so near zero that its sign differs between the nets, one passes it on and the other does not.
So three things are measured: the gap, its growth law, and the first such sign flip.
"""

import math
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lightning_app.common.isolation import wait_for
from lightning_app.identity import id_entries, shortcut
from lightning_app.networks.layers import Layer, layers_of

# About 1 % of a weight: beyond it the twins are two nets like any other, and nothing grows exponentially.
SATURATED = 1e-3


@dataclass(frozen=True)
class Divergence:
    """max |T^-1(p) - r|, in the units of the weights; 0..infinity, NaN where a parameter is."""

    divergence: float  # over all parameters
    divergence_id: float  # over the ID entries, where r lost its low bits beside 1
    divergence_other: float  # over all others, biases among them


@torch.no_grad()
def twin_divergence(plain: Any, residual: Any) -> Divergence:
    """max |T^-1(p) - r| of a plain net p and a residual net r, computed as (p - rho) - r in the nets' precision.

    This loses no accuracy where it matters: p - 1 is exact for p in [1/2, 2] (Sterbenz) and otherwise rounded by ``u |p - 1|``,
    and the second difference is exact as long as the two agree to a factor of 2. Right after T the result
    is at most ``u (1 + |r|)`` at the ID entries (u = 2^-53 in float64) and 0 elsewhere.

    Raises:
        ValueError: if the nets are not a plain and a residual one with the same parameters.
    """
    if plain.residual or not residual.residual:
        raise ValueError(
            f"twin_divergence expects a plain net and a residual one, in this order, got residual={plain.residual} and "
            f"residual={residual.residual}."
        )
    one, other = ({name: p.shape for name, p in net.named_parameters()} for net in (plain, residual))
    if differing := sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)):
        raise ValueError(
            f"twin_divergence expects nets with the same parameters, but '{differing[0]}' has the shapes "
            f"{one.get(differing[0])} and {other.get(differing[0])}."
        )
    with_ids, of_residual = set(plain.id_weights()), dict(residual.named_parameters())
    at_id, elsewhere = [], []
    for name, p in plain.named_parameters():
        mask = id_entries(p) if name in with_ids else torch.zeros_like(p, dtype=torch.bool)
        gap = ((p - mask.to(p.dtype)) - of_residual[name]).abs()
        at_id.append(gap.masked_fill(~mask, 0).amax())
        elsewhere.append(gap.masked_fill(mask, 0).amax())
    largest = torch.stack([torch.stack(at_id).amax(), torch.stack(elsewhere).amax()])
    return Divergence(*torch.stack([largest.amax(), *largest]).tolist())


@dataclass(frozen=True)
class Flip:
    """ReLU inputs of one layer that are positive in exactly one of the two nets, on one batch."""

    layer: str
    units: int  # how many, over the batch
    original: float  # the pair of values that lie furthest apart
    twin: float


def sign_flips(layer: str, original: Tensor, twin: Tensor) -> Flip | None:
    """The units whose ReLU is open in one net only: z > 0 in one, z <= 0 in the other. None if there are no such units.

    >>> sign_flips("layer02", torch.tensor([1.0, 0.0, -2.0]), torch.tensor([2.0, 3.0, -1.0]))
    Flip(layer='layer02', units=1, original=0.0, twin=3.0)
    >>> sign_flips("layer02", torch.tensor([0.0]), torch.tensor([-1.0])) is None
    True
    """
    flipped = (original > 0) != (twin > 0)
    if not flipped.any():
        return None
    pairs = torch.stack([original[flipped], twin[flipped]])  # (2, units)
    furthest = int((pairs[0] - pairs[1]).abs().argmax())
    return Flip(layer, pairs.shape[1], *pairs[:, furthest].tolist())


class SignWatch:
    """Compares the ReLU inputs of a net and its T-twin, layer by layer, in forward passes that happen anyway.

    All layers except the last are assumed to have a ReLU behind them. The pre-activations of the net that runs first, whichever
    it is, are kept until the other one reaches the same layer: this needs the memory of one net's activations, for one pass.
    Neither net may be compiled, since a compiled graph does not run hooks. ``gap_at``: number of a layer whose differences are
    recorded.
    """

    def __init__(self, original: nn.Module, twin: nn.Module, gap_at: int | None = None) -> None:
        self.flip: Flip | None = None  # of the first layer that has one
        self.gap = [math.nan, math.nan]  # largest and mean |z_twin - z_original| at layer `gap_at`
        self.seconds = 0.0  # spent in here
        self._waiting: dict[str, Tensor] = {}
        self._handles = [
            layer.module.register_forward_hook(partial(self._arrive, layer, number == gap_at, net is twin))
            for net in (original, twin)
            for number, layer in enumerate(layers_of(net)[:-1], start=1)
        ]

    def stop(self) -> None:
        """Take the hooks off both nets."""
        for handle in self._handles:
            handle.remove()
        self._waiting.clear()

    @torch.no_grad()
    def _arrive(
        self, layer: Layer, compared: bool, is_twin: bool, _: nn.Module, inputs: tuple[Tensor, ...], out: Tensor
    ) -> None:
        if self.flip is not None and not compared:
            return
        if layer.name in self._waiting:  # to be compared now: what a GPU has to do before is no cost of that
            wait_for(out.device)
        start = time.perf_counter()
        here = out.detach()  # with the identity across it: what the layer's ReLU gets
        here = here + shortcut(inputs[0].detach(), here.shape[1], layer.stride) if layer.skip else here
        there = self._waiting.pop(layer.name, None)
        if there is None:
            self._waiting[layer.name] = here
        elif compared:
            apart = (here - there).abs()
            self.gap = torch.stack([apart.amax(), apart.mean()]).tolist()
        if there is not None and self.flip is None:
            self.flip = sign_flips(layer.name, *((there, here) if is_twin else (here, there)))
        self.seconds += time.perf_counter() - start


@dataclass(frozen=True)
class Growth:
    """Least-squares laws of a small divergence d(s) against the step s; NaN if fewer than 3 steps can be used.

    Errors are rms residuals of log d: 0.1 is 10 %, and a large one means that the law does not hold.
    """

    power_exponent: float  # a of d = c s^a, before the first sign flip: 1/2 is a random walk of roundings, 1 a drift
    power_scale: float  # c, the fitted divergence after one step
    power_error: float  # rms residual of log d
    power_steps: int  # number of steps behind the fit
    rate_before: float  # b of an exponential through the same steps, 1/step: what the rate from the flip on compares to
    exponential_rate: float  # b of d = c exp(b (s - flip)), from the first sign flip on, 1/step
    exponential_scale: float  # c, the fitted divergence at the flip
    exponential_error: float  # rms residual of log d
    exponential_steps: int  # number of steps behind the fit


def growth(steps: Tensor, divergence: Tensor, flip_step: float = math.nan) -> Growth:
    """Fit a power law up to the first sign flip and an exponential from there on, both to log d.

    In the power law every decade of steps has the same weight (weights 1/s), since otherwise the last decade would dominate; in
    the exponential every step has. Steps whose divergence is 0 (equal to the last bit) or not finite are left out, and so are
    all steps from the first one on whose divergence is `SATURATED` or more.

    ``steps``, (n,), are the numbers of the steps, > 0. Without a sign flip so far (NaN), all steps are before it.

    >>> s = torch.arange(1, 101)
    >>> law = growth(s, 1e-16 * s**0.5)
    >>> round(law.power_exponent, 6), law.power_steps, law.exponential_rate
    (0.5, 100, nan)
    """
    steps, divergence = steps.double(), divergence.double()
    usable = divergence.isfinite() & (divergence > 0)
    usable[usable.clone()] = divergence[usable].cummax(0).values < SATURATED
    s, y = steps[usable], divergence[usable].log()
    before = torch.ones_like(s, dtype=torch.bool) if math.isnan(flip_step) else s < flip_step
    power = _line(s[before].log(), y[before], 1 / s[before])
    from_flip = s - (0 if math.isnan(flip_step) else flip_step)
    earlier, later = (_line(from_flip[part], y[part], torch.ones_like(s[part])) for part in (before, ~before))
    return Growth(*power, int(before.sum()), earlier[0], *later, int((~before).sum()))


def _line(x: Tensor, y: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """a, c and the rms residual of the least-squares line y = a x + log c; NaN for fewer than 3 points."""
    if len(x) < 3:
        return math.nan, math.nan, math.nan
    w = weights / weights.sum()
    x_mean, y_mean = (w * x).sum(), (w * y).sum()
    slope = (w * (x - x_mean) * (y - y_mean)).sum() / (w * (x - x_mean).square()).sum()
    intercept = y_mean - slope * x_mean
    error = (w * (y - slope * x - intercept).square()).sum().sqrt()
    return float(slope), float(intercept.exp()), float(error)


SECOND = 2  # the layer where the paper saw a difference of 1e-16 after one iteration
SECOND_KEYS = {0: "layer02_at_start", 1: "layer02_after_one_step"}  # by steps done before the batch, at any depth


@dataclass(frozen=True)
class StepRecord:
    """What was recorded step by step during one epoch."""

    number: Tensor  # (n,) int64, optimizer steps done
    divergence: Tensor  # (n,) float64, after the step
    divergence_id: Tensor  # (n,) float64
    risk_original: Tensor  # (n,) float64, nats, of the step's batch, before the step
    risk_twin: Tensor  # (n,) float64
    risk_difference: Tensor  # (n,) float64, twin - original


@dataclass
class TwinHistory:
    """The history of one pair since training began, as a checkpoint keeps it."""

    steps: list[list[float]] = field(default_factory=list)  # of this epoch: `StepRecord` without the difference
    # Of the epochs before: (n, 2) number, divergence.
    history: Tensor = field(default_factory=lambda: torch.empty(0, 2, dtype=torch.float64, device="cpu"))
    flip: dict[str, Any] | None = None  # the first one: step, and the fields of `Flip`
    second: dict[str, float] = field(default_factory=dict)  # |difference| of layer 2's ReLU inputs, by key

    def wants_watching(self, steps_done: int) -> bool:
        """Whether the forward passes of the next batch must be watched."""
        return self.flip is None or steps_done in SECOND_KEYS

    def layer_to_compare(self, steps_done: int) -> int | None:
        """Number of the layer whose ReLU inputs are compared in the next batch."""
        return SECOND if steps_done in SECOND_KEYS else None

    def note(self, watch: SignWatch, steps_done: int) -> None:
        """Record what the watch saw in the batch after ``steps_done`` steps."""
        if steps_done in SECOND_KEYS:
            key = SECOND_KEYS[steps_done]
            self.second |= dict(zip((key, f"{key}_mean"), watch.gap))
        if self.flip is None and watch.flip is not None:
            self.flip = {"step": steps_done + 1, **asdict(watch.flip)}

    def take_steps(self) -> StepRecord:
        """The epoch's steps as arrays; the next epoch starts empty."""
        rows = self.history.new_tensor(self.steps)
        self.steps, self.history = [], torch.cat([self.history, rows[:, :2]])
        number, divergence, divergence_id, original, twin = rows.unbind(1)
        return StepRecord(number.long(), divergence, divergence_id, original, twin, twin - original)

    def scalars(self) -> dict[str, float]:
        """Growth so far and the first flip, by key."""
        flip_step = self.flip["step"] if self.flip else math.nan
        steps, divergence = self.history.unbind(1)
        law = asdict(growth(steps, divergence, flip_step))
        numbers = {f"growth/{name}": value for name, value in law.items()}
        numbers |= self.second | {"first_flip_step": flip_step}
        if self.flip:
            numbers |= {f"first_flip_{name}": self.flip[name] for name in ("units", "original", "twin")}
            numbers["first_flip_layer"] = int(self.flip["layer"].removeprefix("layer"))
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint. Series as tensors: plain lists of a long run would be slow to save."""
        return vars(self) | {"steps": self.history.new_tensor(self.steps)}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "TwinHistory":
        return cls(state["steps"].tolist(), state["history"], state["flip"], dict(state["second"]))
