"""Optimizer, schedule, clipping and averages of a bank, of torch's own classes: each net is stepped as if trained alone."""

import copy
import logging
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lightning_app.common.errors import UserError
from lightning_app.modules.members import Member

log = logging.getLogger(__name__)

Clipping = Literal["norm", "value"]
Interval = Literal["epoch", "step"]
TRIED = 20  # steps of an optimizer before training


def make_schedule(
    make: LRSchedulerCallable | Sequence[LRSchedulerCallable] | None,
    milestones: Sequence[int] | None,
    optimizer: Optimizer,
) -> LRScheduler | ReduceLROnPlateau | None:
    """The scheduler; for a list torch's SequentialLR, which changes to the next scheduler at each milestone.

    Raises:
        UserError: unless the list has one milestone fewer than schedulers, in ascending order.
    """
    several = list(make) if isinstance(make, Sequence) else []
    given = list(milestones or [])
    if len(given) != max(len(several) - 1, 0) or given != sorted(set(given)):
        raise UserError(
            f"model.scheduler_milestones: expected {max(len(several) - 1, 0)} ascending number(s), got {given}: model.scheduler "
            f"has {len(several)} scheduler(s) in a list, and each after the first begins at a milestone."
        )
    if several:
        return SequentialLR(optimizer, [one(optimizer) for one in several], given)
    return make(optimizer) if callable(make) else None


def try_schedules(make: LRSchedulerCallable | Sequence[LRSchedulerCallable] | None, optimizer: Optimizer) -> None:
    """Step each scheduler once with a copy of the optimizer, so that a length of 0 is noticed before an epoch is trained.

    Raises:
        UserError: as `step_schedule`. Other errors are ignored: they may come from the copy, and training will show.
    """
    weights = {id(weight): weight for weight in weights_of(optimizer)}  # are not copied
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # torch's: the optimizer was not stepped before
        for one in make if isinstance(make, Sequence) else [make] if make else []:
            try:
                step_schedule(one(copy.deepcopy(optimizer, {**weights})))
            except UserError:
                raise
            except (
                Exception
            ) as error:  # of code that is not ours: copies of torch's optimizers lack attributes of subclasses
                log.debug(f"a schedule cannot be tried in advance: {error!r}")


def check_rate(optimizer: Optimizer) -> None:
    """Check that the optimizer has an option ``lr``, which schedules change and the log shows.

    Raises:
        UserError: naming the optimizer and the options that it has.
    """
    missing = next((group for group in optimizer.param_groups if "lr" not in group), None)
    if missing is not None:
        has = ", ".join(name for name in missing if name != "params") or "none"
        raise UserError(
            f"{type(optimizer).__name__}: expected an option `lr`, which model.scheduler changes and the log shows, got "
            f"{has}. Name the learning rate `lr` in the defaults that it passes to torch.optim.Optimizer."
        )


def refuse_unfit(optimizer: Optimizer, scheduler: Any, members: int) -> None:
    """Refuse optimizers and schedulers with which a net of a bank would differ from the same net trained alone.

    Raises:
        UserError: naming the optimizer or scheduler.
    """
    for option in ("weight_decay", "lambd"):  # ASGD has both
        if found := [group[option] for group in optimizer.param_groups if group.get(option)]:
            raise UserError(
                f"model.optimizer: expected {option} 0, got {found[0]}: set it to 0, and model.weight_decay instead, which has a "
                "centre and counts in the cost."
            )
    if isinstance(optimizer, SparseAdam):
        raise UserError("SparseAdam is not supported, as it needs sparse gradients of all weights: use Adam.")
    if isinstance(optimizer, LBFGS) and members > 1:
        raise UserError(_mixes(optimizer, "takes the gradients of all parameters as one vector"))
    if isinstance(optimizer, LBFGS) and not all(w.is_contiguous() for w in optimizer.param_groups[0]["params"]):
        raise UserError(
            "LBFGS joins all gradients into one vector, which torch cannot do in channels_last format: set "
            "model.channels_last: false."
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        raise UserError(
            "ReduceLROnPlateau needs one loss, and a run has one for each net: use another scheduler, such as "
            "CosineAnnealingLR."
        )


def _mixes(optimizer: Optimizer, why: str) -> str:
    return (
        f"{type(optimizer).__name__} {why}: a net's steps would depend on the other nets of the run. Train one net at a time "
        "(model.net and one seed), or use an optimizer that steps each weight by itself, such as SGD or Adam."
    )


def wants_cost(optimizer: Optimizer) -> bool:
    """May the optimizer use the value that its closure returns? Of torch's own only LBFGS does."""
    return isinstance(optimizer, LBFGS) or not _of_torch(optimizer)


def _of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def refuse_mixing(make: OptimizerCallable, optimizer: Optimizer, members: int) -> None:
    """Refuse an optimizer of another project whose steps depend on all weights together, as by the norm of all gradients.

    It is tried on some numbers, alone and beside others.

    Raises:
        UserError: naming the optimizer. Other errors are ignored: they may come from these numbers, and training will show.
    """
    if members == 1 or _of_torch(optimizer):
        return
    try:
        alone, beside = (_tried(_with_copies(make), count) for count in (1, 2))
    except Exception as error:
        log.debug(f"the optimizer cannot be tried in advance: {error!r}")
        return
    if not torch.allclose(alone, beside, rtol=0, atol=0, equal_nan=True):
        raise UserError(
            _mixes(optimizer, "computes a number of all weights together (a norm of all gradients, a rate)")
        )


def _with_copies(make: OptimizerCallable) -> OptimizerCallable:
    """It gives each optimizer the same objects, such as a generator or a counter, which are for training."""
    return partial(make.func, *make.args, **copy.deepcopy(make.keywords)) if isinstance(make, partial) else make


def _tried(make: OptimizerCallable, count: int) -> Tensor:
    """The first of so many weights after some steps, in which the gradients of the others grow."""
    weights = [nn.Parameter(torch.arange(1.0, 5.0).view(2, 2) + index) for index in range(count)]
    optimizer: Any = make(weights)  # torch's types know only closures that return a float
    with torch.random.fork_rng(devices=[]):
        for number in range(TRIED):

            def closure(number: int = number) -> Tensor:
                if weights[0].grad is not None:
                    raise RuntimeError("it asks for gradients several times, which `step` refuses")
                for index, weight in enumerate(weights):
                    weight.grad = weight.detach() * 2.0 ** (index * number)
                return torch.zeros(())

            torch.default_generator.manual_seed(number)
            optimizer.zero_grad()
            optimizer.step(closure)
    return weights[0].detach()


def step(optimizer: LightningOptimizer, gradients: Callable[[], Tensor | None], members: int) -> None:
    """One optimizer step. The optimizer calls ``gradients``, which computes cost and gradients: once, or for one net repeatedly.

    Raises:
        UserError: if an optimizer calls it repeatedly for several nets, or not before it needs the gradients.
    """
    inner, calls = optimizer.optimizer, 0

    def closure() -> Tensor | None:
        nonlocal calls
        calls += 1
        if calls > 1 and members > 1:
            why = "asks for gradients several times in a step, and mixes them (SAM, a line search)"
            raise UserError(_mixes(inner, why))
        return gradients()

    late = (
        f"{type(inner).__name__}.step(closure) must call its closure before anything else: the closure computes cost and "
        "gradients."
    )
    inner.zero_grad()  # of the step before: an optimizer that calls its closure late must not use them
    try:
        optimizer.step(closure)
    except (AssertionError, AttributeError, RuntimeError, TypeError) as error:
        if calls:
            raise
        raise UserError(f"{late} It stopped with {type(error).__name__}: {error}") from error
    if not calls:
        raise UserError(late)


def of_own_dtype(
    states: Mapping[Any, Any], optimizer: Optimizer, dtypes: Mapping[nn.Parameter, torch.dtype]
) -> dict[nn.Parameter, dict[str, Tensor]]:
    """What an optimizer kept of a weight in another dtype than the weight had, such as NAdam's float32 product in bf16-true.

    torch casts it to the weight's when it loads a checkpoint. It leaves `step` alone.

    Args:
        states: of the weights by their number, as in a checkpoint.
        optimizer: of the weights that they are for.
        dtypes: of the weights in the checkpoint.
    """
    weights = weights_of(optimizer)
    of_weights = {weights[key]: kept for key, kept in states.items() if isinstance(key, int) and isinstance(kept, dict)}
    return {
        weight: {
            name: value
            for name, value in kept.items()
            if isinstance(value, Tensor) and name != "step" and value.dtype != dtypes.get(weight, value.dtype)
        }
        for weight, kept in of_weights.items()
    }


@torch.no_grad()
def lay_out(optimizer: Optimizer) -> None:
    """Lay out in memory what an optimizer keeps of each weight as the weight, after a resume in another memory format.

    torch keeps a checkpoint's layout. A fused step takes the memory of both in one order, and would give a weight the momentum
    of others.
    """
    for weight, kept in optimizer.state.items():
        of_weight = isinstance(weight, Tensor) and isinstance(kept, dict)  # else the optimizer's own
        for name, value in kept.items() if of_weight else ():
            strided = type(value) is Tensor and value.layout == weight.layout == torch.strided
            if strided and value.shape == weight.shape and value.stride() != weight.stride():
                kept[name] = torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)


def step_schedule(scheduler: Any) -> None:
    """One step of a schedule.

    Raises:
        UserError: for a schedule that has ended (OneCycleLR), or divides by a length of 0 (StepLR).
    """
    try:
        scheduler.step()
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"{type(scheduler).__name__} cannot continue ({error}): set its lengths in model.scheduler to 1 or more, counted "
            "in epochs or steps as model.scheduler_interval says."
        ) from error


@dataclass
class Averages:
    """Exponential moving averages of nets' weights and buffers.

    Args:
        pairs: each average and its net.
        decay: in a step.
        begun: whether this is not the first step of all, whose weights are copied.
    """

    pairs: Sequence[tuple[AveragedModel, nn.Module]]
    decay: float
    begun: bool

    def __post_init__(self) -> None:
        """Masks and positions are copied, not averaged: inf - inf is no number, and a mean of integers may be rounded down.

        They are known by their place, in which a net may put another tensor.
        """
        self._copied = [[_is_copied(each) for each in tensors_of(net)] for _, net in self.pairs]

    @torch.no_grad()
    def update(self) -> None:
        """`AveragedModel.update_parameters` of all at once. That asks its counter, on the device, if this is the first step."""
        by_dtype: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        copied: list[tuple[Tensor, Tensor]] = []
        for (average, net), are_copied in zip(self.pairs, self._copied):
            for ours, theirs, is_copied in zip(tensors_of(average.module), tensors_of(net), are_copied, strict=True):
                (copied if is_copied else by_dtype[ours.dtype]).append((ours, theirs))
        towards = get_ema_multi_avg_fn(self.decay)
        for pairs in by_dtype.values():
            averages, present = map(list, zip(*pairs))
            if self.begun:
                towards(averages, present, 0)
            else:
                torch._foreach_copy_(averages, present)
        for ours, theirs in copied:
            ours.copy_(theirs)
        torch._foreach_add_([average.n_averaged for average, _ in self.pairs], 1)
        self.begun = True

    def tensors(self) -> list[Tensor]:
        """What a step changes."""
        return tensors_of(*(average for average, _ in self.pairs))


def _is_copied(tensor: Tensor) -> bool:
    """Whether it is a buffer that is no number to be averaged."""
    return not isinstance(tensor, nn.Parameter) and not (tensor.is_floating_point() and bool(tensor.isfinite().all()))


def weights_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All weights of an optimizer, in the order in which its state numbers them."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def tensors_of(*nets: nn.Module) -> list[Tensor]:
    """Their weights and buffers."""
    return [tensor for net in nets for tensor in (*net.parameters(), *net.buffers())]


def clip(members: Iterable[Member], limit: float | None, algorithm: Clipping) -> None:
    """Clip each net's gradients by their own 2-norm, or entry by entry; None leaves them."""
    if limit is None:
        return
    clip_one = clip_grad_norm_ if algorithm == "norm" else clip_grad_value_
    for member in members:
        clip_one([*member.net.parameters()], limit)
