"""Where NaN or infinity first appeared: the batch of that step is run again on a copy of the net, and every operation watched.

A value of an input, a weight or a buffer, an operation of the forward pass or of the loss, a node of the backward pass: the
first one whose inputs are finite and whose outcome is not. Infinities that do no harm, such as the mask of an attention, are
followed as far as they go and then forgotten.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from lightning_app.common.errors import DivergedError, reason
from lightning_app.common.isolation import device_of, tensors_in, trained_weights
from lightning_app.modules.backends import Answer, Pass, seed_draws
from lightning_app.modules.members import Member
from lightning_app.modules.optimizing import weights_of

Part = Literal["data", "weight", "buffer", "forward", "loss", "backward", "update", "unknown"]
# Steps between looks at weights after an update, beside the first: what is missed shows in the next loss.
WEIGHTS_EVERY = 50
SHOWN = 3  # samples, tensors or losses that a message names
ADVICE: Mapping[Part, str] = {
    "data": "Correct these samples, or remove them.",
    "weight": "The gradients of the step before were finite: most likely the optimizer's update is the cause.",
    "buffer": "Check which code writes to this buffer.",
    "update": "Try a smaller learning rate, or another epsilon of the optimizer.",
    "unknown": "To know the layer, resume from the last checkpoint with --model.finite_every 1.",
}
SMALLER = "If the values were growing, try a smaller learning rate or model.gradient_clip_val."


@dataclass(frozen=True)
class Origin:
    """Where the first value that is not finite came from.

    Attributes:
        part: of the step.
        where: the layer, or the tensor, as the net names it.
        values: the last finite values there, in words.
    """

    part: Part
    where: str
    values: str

    def __str__(self) -> str:
        words = {"forward": "forward pass", "backward": "backward pass", "update": "the optimizer's update"}
        part = "" if self.part == "unknown" else f"{words.get(self.part, self.part)}, "
        return f"{part}{self.where}: {self.values}"


class FiniteChecks:
    """Checks losses, gradients and weights of a run's nets, and stops the run when one is NaN or infinite.

    Args:
        every: steps between checks. On a GPU each has to wait for the device; on a CPU it computes norms of all gradients.
        members: of this process.
    """

    def __init__(self, every: int, members: Sequence[Member]) -> None:
        self.every = every
        self.members = members
        self._recent: list[tuple[int, Tensor]] = []  # since the last look: number of a step, its risks (members,)

    def keep(self, number: int, risks: Tensor) -> None:
        """Of a step that is not looked into: its risks (members,), for the next look at losses."""
        self._recent.append((number, risks))

    def before_update(
        self, optimizer: Optimizer, passes: Sequence[Pass], answers: Sequence[Answer], number: int, when: str
    ) -> None:
        """After the backward pass.

        Args:
            optimizer: of all members, with gradients.
            passes: of the members, in their order.
            answers: to the passes.
            number: of the step, from 1.
            when: the step in words.

        Raises:
            DivergedError: that says where it came from.
        """
        self.keep(number, torch.stack([risk for risk, _ in answers]))
        if number % self.every:
            return
        self.at_losses(when, passes)
        if not _all_finite(w.grad for w in _trained(optimizer) if w.grad is not None):
            index, broken = self._first(lambda w: w.grad)
            origin = _run_again(passes[index])
            if origin.part == "unknown":
                why = "the loss's own gradient is finite: that of the penalty is not, or a hook or the clipping changed it"
                origin = Origin("backward", broken, why)
            raise self._diverged("a gradient", index, when, origin)

    def after_update(self, optimizer: Optimizer, number: int, when: str) -> None:
        """After the optimizer's update, whose gradients were finite.

        Raises:
            DivergedError: that names the weights that are not.
        """
        due = number == 1 or not number % math.lcm(self.every, WEIGHTS_EVERY)
        if not due or _all_finite(_trained(optimizer)):
            return
        index, broken = self._first(lambda w: w)
        weights = dict(self.members[index].net.named_parameters())
        gradient = next(w.grad for w in weights.values() if w.grad is not None and not _finite(w))
        values = f"{type(optimizer).__name__}, the gradient was {_range(gradient)}"
        raise self._diverged("a weight", index, when, Origin("update", broken, values))

    def at_losses(self, when: str, passes: Sequence[Pass] = ()) -> None:
        """Look at the losses since the last look; without passes, or of an earlier step, no batch is left to be run again.

        Raises:
            DivergedError: of the first step and member.
        """
        if not self._recent:
            return
        risks = torch.stack([risks for _, risks in self._recent])
        finite = math.isfinite(float(risks.sum()))  # the one look at the device
        lost = [] if finite else (~risks.isfinite()).nonzero().tolist()
        if not lost:
            del self._recent[:-SHOWN]
            return
        row, index = lost[0]
        if passes and row == len(self._recent) - 1:
            origin = _run_again(passes[index])
        else:
            weights = _broken(dict(self.members[index].net.named_parameters())) or "all weights are finite"
            origin = Origin("unknown", "the batch of that step is no longer there; now", weights)
            when = f"step {self._recent[row][0]}, seen in {when}"
        raise self._diverged("the loss", index, when, origin)

    def _first(self, of: Callable[[nn.Parameter], Any]) -> tuple[int, str]:
        """The first member with a tensor that is not finite, and its such tensors in words."""
        for index, (_, net) in enumerate(self.members):
            named = {name: of(w) for name, w in net.named_parameters() if w.grad is not None}
            if broken := _broken(named):
                return index, broken
        raise AssertionError("something was not finite, and nothing is")

    def _diverged(self, what: str, index: int, when: str, origin: Origin) -> DivergedError:
        losses = [f"{risk:.3g}" for _, risks in self._recent if math.isfinite(risk := float(risks[index]))]
        return DivergedError(
            f"{what} of member '{self.members[index].name}' became NaN or infinite in {when}. Where: {origin}. Its last finite "
            f"losses: {', '.join(losses[-SHOWN:]) or 'none'}. What was logged so far is kept. {ADVICE.get(origin.part, SMALLER)}"
        )


def not_finite(members: Sequence[Member]) -> set[tuple[str, str]]:
    """Members and keys of weights and buffers with NaN or an infinity."""
    state = {
        (name, key): value
        for name, net in members
        for key, value in net.state_dict().items()
        if isinstance(value, Tensor)  # a net's `get_extra_state` may be anything
    }
    finite = [value.isfinite().all() for value in state.values()]
    there = device_of(*(net for _, net in members))  # extra state may lie elsewhere
    looked = torch.stack([each.to(there) for each in finite]).tolist()  # one look at the device
    return {key for key, fine in zip(state, looked) if not fine}


def _trained(optimizer: Optimizer) -> list[nn.Parameter]:
    return [w for w in weights_of(optimizer) if w.grad is not None]


def _run_again(each: Pass) -> Origin:
    try:
        return origin_of(each)
    except Exception as error:  # of a net that cannot be copied, or will not be watched
        return Origin("unknown", "the batch could not be run again", reason(error))


@torch.no_grad()
def _all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all values are finite. One look at the device, and a norm of each tensor; entries only where that overflows.

    Not `get_total_norm`, which takes 1.5 times as long: this runs in every step.
    """
    tensors = list(tensors)
    if not tensors or math.isfinite(float(torch.stack(torch._foreach_norm(tensors)).sum())):
        return True
    return all(map(_finite, tensors))


def _broken(named: Mapping[str, Tensor]) -> str:
    """The tensors with values that are no finite numbers, in words; empty where there are none."""
    found = [f"{name} ({_range(tensor)})" for name, tensor in named.items() if not _finite(tensor)]
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def origin_of(each: Pass) -> Origin:
    """Run the pass again, on a copy of the net as it is now.

    Args:
        each: one member's pass, before the optimizer's update: the same weights, batch and random draws.
    """
    net = copy.deepcopy(each.net)
    seed_draws(each.seed, each.images.device)
    watch = _Watch(net, each.images)
    with torch.enable_grad(), watch:
        logits = net(each.images)
        watch.layers.append("the loss")
        risk = each.loss(logits, each.labels)
    if not _finite(risk):
        return watch.origins.get(id(risk)) or Origin(
            "unknown", "the batch was run again", "no observed operation was the cause"
        )
    return _backward(net, risk * each.weight, watch) or Origin(
        "unknown", "the batch was run again", "everything was finite"
    )


class _Watch(TorchFunctionMode):
    """Follows values that are not finite through a net's forward pass, and keeps what made each node of the backward pass."""

    def __init__(self, net: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.layers = ["the net's own forward"]  # within which an operation runs, the innermost last
        self.origins: dict[int, Origin] = {}  # of a tensor that is not finite
        self.names: dict[Any, str] = {}  # of the nodes of the backward pass
        self._kept: list[Any] = []  # so that no id is given twice
        self._sources: dict[int, tuple[Part, str]] = {id(images): ("data", "images")}
        self._sources |= {id(tensor): ("weight", name) for name, tensor in net.named_parameters()}
        self._sources |= {id(tensor): ("buffer", name) for name, tensor in net.named_buffers()}
        for name, module in net.named_modules():
            if name:
                module.register_forward_pre_hook(lambda *_, name=name: self.layers.append(f"layer {name}"))
                module.register_forward_hook(self._left)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = [*tensors_in((args, kwargs or {}))]
        known, before = self._came_in(given)
        for tensor in given:  # what no operation was seen to make, such as a function of one's own
            self._keep_name(tensor.grad_fn, f"{self.layers[-1]}, before {func.__name__}")
        out = func(*args, **(kwargs or {}))
        self._kept += given
        changed = given[:1] if func.__name__ == "__setitem__" else []
        self._see([*tensors_in(out), *changed], known, func.__name__, before)
        return out

    def _see(self, outcomes: list[Tensor], known: Origin | None, operation: str, before: str) -> None:
        for outcome in outcomes:
            self._kept.append(outcome)
            self._keep_name(outcome.grad_fn, f"{self.layers[-1]}, {operation}")
            if _finite(outcome):
                self.origins.pop(id(outcome), None)
                continue
            part: Part = "loss" if self.layers[-1] == "the loss" else "forward"
            overflow = f"; the largest {outcome.dtype} is {torch.finfo(outcome.dtype).max:.3g}".replace("torch.", "")
            fresh = Origin(part, f"{self.layers[-1]}, {operation}", f"{before or 'no input'}{overflow}")
            self.origins.setdefault(id(outcome), known or fresh)

    def _left(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """What no operation was seen to do, such as one of a graph or of an extension, its layer did."""
        name = self.layers[-1]
        known, before = self._came_in([*tensors_in(inputs)])
        for tensor in tensors_in(output):
            self._keep_name(tensor.grad_fn, name)
            if not _finite(tensor) and id(tensor) not in self.origins:
                self._kept.append(tensor)
                self.origins[id(tensor)] = known or Origin("forward", name, before)
        self.layers.pop()

    def _came_in(self, given: list[Tensor]) -> tuple[Origin | None, str]:
        """Where the NaN or infinities among these came from; if that was not seen, all of them in words."""
        known = next((found for t in given if not _finite(t) and (found := self._known(t))), None)
        return known, "" if known else ", ".join(f"{self._name(t)} {_range(t)}" for t in given)

    def _known(self, tensor: Tensor) -> Origin | None:
        """Where a tensor's NaN or infinities came from; None where that was not seen."""
        if id(tensor) in self.origins or id(tensor) not in self._sources:
            return self.origins.get(id(tensor))
        part, name = self._sources[id(tensor)]
        samples = (
            [i for i, fine in enumerate(tensor.detach().isfinite().flatten(1).all(1).tolist()) if not fine]
            if part == "data"
            else []
        )
        where = f"sample {', '.join(map(str, samples[:SHOWN]))} of the batch, " if samples else ""
        return Origin(part, name, where + _range(tensor))

    def _name(self, tensor: Tensor) -> str:
        return self._sources.get(id(tensor), ("", "input"))[1]

    def _keep_name(self, node: Any, where: str) -> None:
        """An operation can be several nodes: all that none before it has made."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in self.names:
                self.names[node] = where
                waiting += [following for following, _ in node.next_functions]


def _backward(net: nn.Module, cost: Tensor, watch: _Watch) -> Origin | None:
    """The first node of the backward pass that made something infinite of what was finite."""
    found: list[Origin] = []

    def hook(where: str) -> Any:
        def look(inner: Any, outer: Any) -> None:
            if not found and all(map(_finite, tensors_in(outer))) and not all(map(_finite, tensors_in(inner))):
                found.append(Origin("backward", where, ", ".join(f"gradient {_range(t)}" for t in tensors_in(outer))))

        return look

    watch._keep_name(cost.grad_fn, "the loss")
    for node, where in watch.names.items():
        node.register_hook(hook(where))
    named = trained_weights(net)
    gradients = torch.autograd.grad(cost, list(named.values()), allow_unused=True)
    if found:
        return found[0]
    broken = _broken({name: g for name, g in zip(named, gradients) if g is not None})
    return Origin("backward", broken, "a sum of finite gradients") if broken else None


def _finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.detach().isfinite().all())


def _range(tensor: Tensor) -> str:
    """The finite values, and how many others.

    >>> _range(torch.tensor([1.0, -2.0, torch.nan])), _range(torch.tensor([torch.inf]))
    ('in [-2, 1], 1 of 3 not finite', '1 of 1 not finite')
    """
    values = tensor.detach().flatten()
    finite = values[values.isfinite()]
    inside = [f"in [{float(finite.min()):.3g}, {float(finite.max()):.3g}]"] if finite.numel() else []
    lost = values.numel() - finite.numel()
    return ", ".join(inside + ([f"{lost} of {values.numel()} not finite"] if lost else []))
