"""Where a net can be cut in two: the signals x^i of Arora et al. (2018), and the maps M^{i,j} between them.

Their theory is of nets ``x^i = A^i phi(x^{i-1})``, in which every pre-activation determines all that follows. In a net
with skips only what lies between two blocks does, so blocks are the units here, for plain nets too, that they can be
compared: x^1 goes into the first block, x^2 into the second, and so on; the last one is the output. In a simplified net
a block is a layer and this is the theory's own numbering; in a net with two convolutions a block it passes over the
inner ones.

x^i is the *pre*-activation: the input of the ReLU whose output goes into the block, or the signal itself where no ReLU
made it. That a boundary of a block is a cut is tried, not assumed: the net is run on another image with this one signal
put in its place, and all that comes after must be as before. Where something goes round (blocks within blocks), the
boundary is left out.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jvp

from lightning_app.common.calls import blank
from lightning_app.common.isolation import attention_written_out, is_of_device
from lightning_app.measures.core.channels import Channels
from lightning_app.measures.core.hooks import (
    WatchRelus,
    call_with,
    check_evaluating,
    hooked,
    nearly_same,
    with_plain_weights,
)
from lightning_app.networks.blocks import blocks_of
from lightning_app.networks.layers import Layer, layers_of

_TOLERANCE = 1e-3  # of the largest entry: another batch size rounds otherwise (`nearly_same`), what goes round a cut shows by far


class CutNet:
    """A net that was run once on some images, and can be run again from any of its cuts.

    Python counts from 0: ``signals[0]`` is x^1. The net itself is not changed: a copy that shares its parameters is used. A net
    without blocks has no cuts, only its output.

    Raises:
        UserError: for a net in training mode.

    Attributes:
        signals: x^1, x^2, ..., the output; each (B, ...).
        positions: n_i of each: H W of a map, T of tokens, 1 of a vector (`Channels`).
        cut_after: layer name -> index of the first signal that changes if this layer's weight changes, in all layers that share
            it. Layers whose weight the forward pass does not use are absent.
    """

    @torch.no_grad()
    def __init__(self, net: nn.Module, images: Tensor) -> None:
        check_evaluating(net, "a cut")
        self._net = with_plain_weights(net)
        self._images = images
        self._together: set[int] = set()  # cuts before which as many images must run as there are samples behind them
        clean = _ForwardPass(self._net)(images)
        self._cuts = [at for at in range(len(clean.signals) - 1) if self._is_cut(at, clean.signals)]
        self.signals = [clean.signals[at] for at in (*self._cuts, -1)]
        self.positions = [clean.positions[at] for at in (*self._cuts, -1)]
        self.cut_after = {name: sum(at < passed for at in self._cuts) for name, passed in clean.passed_before.items()}

    def after(self, cut: int, signal: Tensor, weights: Mapping[str, Tensor] | None = None) -> list[Tensor]:
        """All signals after a cut (an index into `signals`) if ``signal``, (any B, ...), is put there: M^{i,j} for every j > i.

        Weights by state-dict name replace the net's own. The part before the cut runs on one black image, or on as many as there
        are samples if that part depends on their number.
        """
        at = self._cuts[cut]
        black = self._black(len(signal) if at in self._together else 1)
        passage = _ForwardPass(self._net, at, signal)(black, weights)
        return [passage.signals[at] for at in (*self._cuts[cut + 1 :], -1)]

    def push(self, cut: int, tangent: Tensor) -> list[Tensor]:
        """J^{i,j} v at x^i for every j > i. Cost: two runs of `after`."""
        with attention_written_out():
            return jvp(lambda signal: self.after(cut, signal), (self.signals[cut],), (tangent,))[1]

    def output_with(self, name: str, weights: Mapping[str, Tensor]) -> Tensor:
        """The output, (B, classes), with other weights of the layer ``name``; the part before the layer's cut is not computed."""
        cut = self.cut_after[name] - 1
        if cut < 0:
            return call_with(self._net, weights, (self._images,))
        return self.after(cut, self.signals[cut], weights)[-1]

    def _black(self, count: int) -> Any:
        return blank(self._images[:1])[[0] * count]

    def _is_cut(self, at: int, clean: list[Tensor]) -> bool:
        """Whether all that comes after is the same when this signal is, on black images as in `after`."""
        few = slice(2)
        if len(clean[at]) != len(self._images):  # windows, or time before samples: not a row a sample
            return False
        for count in (1, len(clean[at][few])):
            try:
                found = _ForwardPass(self._net, at, clean[at][few])(self._black(count)).signals
            except RuntimeError as error:  # one sample, or its number, came round it, and does not go with two
                if is_of_device(error):
                    raise
                self._together.add(at)
            else:
                return all(
                    nearly_same(one, other[few], _TOLERANCE) for one, other in zip(found[at + 1 :], clean[at + 1 :])
                )
        return False


class _ForwardPass:
    """One forward pass: records the signals at all boundaries of blocks, or puts another signal at one of them."""

    def __init__(self, net: nn.Module, at: int | None = None, signal: Tensor | None = None) -> None:
        self.net = net
        self.signals: list[Tensor] = []
        self.positions: list[int] = []
        self.passed_before: dict[str, int] = {}  # layer -> boundaries before the first use of its weight
        self._at, self._signal = at, signal
        # In and out of the last one, and the version of what came out: it may be changed in place.
        self._relu: tuple[Tensor | None, Tensor | None, int] = None, None, 0
        self._here: tuple[Tensor | None, int] = None, 0  # what goes over the last boundary, and its version there
        self._channels = Channels.before(net)

    def __call__(self, images: Tensor, weights: Mapping[str, Tensor] | None = None) -> "_ForwardPass":
        blocks = [module for block in blocks_of(self.net) for module in block.modules]
        having: dict[int, list[Layer]] = defaultdict(list)  # weight -> layers that have it
        for layer in layers_of(self.net):
            having[id(layer.parameter)].append(layer)
        used: dict[nn.Module, list[str]] = defaultdict(list)  # module -> layers whose weight it uses
        for sharing in having.values():
            for module in {layer.module for layer in sharing}:
                used[module] += [layer.name for layer in sharing]

        def call(module: nn.Module, inputs: tuple) -> None:
            for name in used[module]:
                self.passed_before.setdefault(name, len(self.signals))

        def called(module: nn.Module, inputs: tuple, out: Any) -> None:
            self._channels = Channels.of(module, out)

        def enter(block: nn.Module, inputs: tuple) -> tuple | None:
            return (self._boundary(inputs[0]), *inputs[1:]) if inputs and _is_signal(inputs[0]) else None

        def leave(block: nn.Module, inputs: tuple, out: Any) -> Tensor | None:
            return self._boundary(out) if _is_signal(out) else None

        with (
            WatchRelus(self._rectified),
            hooked(blocks, enter, leave),
            hooked(used, call, called),
        ):
            self._pass(call_with(self.net, weights or {}, (images,)))
        return self

    def _pass(self, signal: Tensor) -> None:
        self.signals.append(signal)
        self.positions.append(self._channels.positions(signal))

    def _rectified(self, x: Tensor, out: Tensor) -> None:
        self._relu = x, out, _version(out)

    def _boundary(self, x: Tensor) -> Tensor:
        """What goes on from here: x, or what the injected signal becomes."""
        here, version = self._here
        if x is here and _version(x) == version:  # the output of one block is the input of the next: one boundary
            return x
        before, after, version = self._relu
        rectified = before is not None and after is x and _version(x) == version
        signal = before if before is not None and rectified else x.clone()  # the block may change its input in place
        if len(self.signals) == self._at and self._signal is not None:
            signal = self._signal
            x = F.relu(signal) if rectified else signal.clone()
        self._pass(signal)
        self._here = x, _version(x)
        return x


def _is_signal(x: Any) -> bool:
    """What is none, such as a tuple or tokens, has no boundary."""
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 0


def _version(x: Tensor) -> int:
    """How often it was changed in place, as blocks do that return their own input."""
    return 0 if x.is_inference() else x._version
