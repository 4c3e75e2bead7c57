"""Losses with one label per sample or one per token: what the mean over a batch counts, and which outputs are wrong."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.calls import (
    IGNORED,
    behind_loss,
    call,
    described,
    form_of,
    joined,
    outputs_of,
    returned_loss,
    takes,
)
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.measures.core.hooks import call_with, hooked
from lightning_app.networks.layers import layers_of

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> mean of the batch, ()
Batch = tuple[Any, Tensor]  # inputs, a tensor (B, ...) or `Inputs`, and labels (B, ...)
Batches = Iterable[tuple[Any, ...]]  # such pairs
TRIED = 8  # samples on which it is seen whether a loss is a mean
MAPS_1D = (nn.Conv1d, nn.ConvTranspose1d)
NO_MEAN = (  # what needs one, two losses, what to do otherwise
    "{} needs a loss that is an unweighted mean over samples, or over the tokens whose label is not -100 (or what the loss has "
    "as ignore_index): for some samples the loss is {:.4g}, but the mean of their separate losses is {:.4g}. Use such a loss, "
    "or {}"
)


class NoClassError(UserError):
    """Labels that are not classes of the outputs. Training raises an error that names net and sample instead."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats, over samples or over tokens whose label is not -100.

    Raises:
        UserError: for labels that are not classes of the outputs, or whose number does not match them.

    >>> logits = torch.zeros(2, 3, 4)  # two sequences of three tokens, four classes
    >>> round(float(cross_entropy(logits, torch.tensor([[1, 2, 0], [3, -100, -100]])).exp()))
    4
    """
    if are_numbers(labels) or (labels.ndim > 1 and labels.shape == outputs.shape):
        one_hot = "take labels.argmax(1), " * (labels.ndim == 2)
        raise UserError(
            "without a loss of its own a module is measured with the cross-entropy, which needs class numbers as labels, "
            f"got {labels.dtype} of shape {tuple(labels.shape)}: {one_hot}give the LightningModule a method loss(outputs, "
            "labels), or pass `loss`."
        )
    labels = _signed(labels)
    given, outputs = outputs, classes_second(outputs, labels)
    try:
        return F.cross_entropy(outputs, labels)
    except IndexError as error:  # a GPU stops the process instead
        raise NoClassError(
            f"the cross-entropy needs labels that are class numbers of the outputs {tuple(given.shape)}, or -100 to be "
            f"ignored, got labels from {int(labels.min())} to {int(labels.max())}."
        ) from error
    except (RuntimeError, ValueError) as error:
        if (*outputs.shape[:1], *outputs.shape[2:]) == labels.shape:
            raise
        raise UserError(
            "the cross-entropy needs outputs (B, classes) with labels (B,), or (B, T, classes) with (B, T), got outputs "
            f"{tuple(given.shape)} and labels {tuple(labels.shape)}: pass `loss`. If the net returns all outputs only when "
            'it gets targets, put them into the batches, such as {"idx": x, "targets": y, "labels": y}.'
        ) from error


def classes_second(outputs: Tensor, labels: Tensor, loss: Any = None) -> Tensor:
    """Outputs of tokens, (B, T, classes), in the order that PyTorch's losses expect, (B, classes, T); other outputs unchanged."""
    of_tokens = outputs.ndim == 3 and outputs.shape[:2] == labels.shape and not getattr(loss, "of_maps", False)
    return outputs.movedim(-1, 1) if of_tokens else outputs


def loss_of_net(net: nn.Module, loss: Loss) -> Loss:
    """``loss``; in place of `cross_entropy` the loss that the net itself returns, if its ``forward`` takes labels.

    Any other loss of a net with 1-d convolutions is wrapped in `LossOfMaps`.
    """
    if loss is cross_entropy and takes(net, "labels"):
        return ReturnedLoss()
    return LossOfMaps(loss) if any(isinstance(module, MAPS_1D) for module in net.modules()) else loss


class LossOfTokens:
    """A CrossEntropyLoss that also accepts outputs of tokens, (B, T, classes), which training flattens for it.

    A subclass with a ``forward`` of its own gets them as the net returns them, unless it raises an error for that shape.
    """

    def __init__(self, criterion: nn.CrossEntropyLoss) -> None:
        self.criterion = criterion
        self.ignore_index = criterion.ignore_index

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if type(self.criterion).forward is not nn.CrossEntropyLoss.forward:
            with suppress(RuntimeError, ValueError, IndexError):
                return self.criterion(outputs, labels)
        return self.criterion(classes_second(outputs, labels), labels)


class LossOfMaps:
    """The loss of a net with 1-d convolutions, whose outputs (B, classes, places) are ambiguous if there are as many classes as
    places.

    Attributes:
        of_maps: whether the outputs come from a convolution (`look`), so that classes are the second dimension.
        criterion: the loss that takes classes second, whatever the labels' shape.
    """

    of_maps = False

    def __init__(self, loss: Loss) -> None:
        self._loss, self.ignore_index = loss, ignored_label(loss)
        plain = F.cross_entropy if loss is cross_entropy else loss
        self.criterion = plain.criterion if isinstance(plain, LossOfTokens) else plain

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (self.criterion if self.of_maps else self._loss)(outputs, labels)

    @torch.no_grad()
    def look(self, net: nn.Module, inputs: Any) -> None:
        """Find out, from one sample, whether the layer that runs last is a convolution and its channels come second."""
        channels: list[int] = []
        layers = [layer.module for layer in layers_of(net)]
        with hooked(layers, after=lambda layer, _, out: channels.append(getattr(layer, "out_channels", 0))):
            outputs = outputs_of(call(net, inputs[:1]))
        self.of_maps = outputs.ndim == 3 and bool(channels) and outputs.shape[1] == channels[-1]


class ReturnedLoss:
    """The loss that a net returns with its outputs when its inputs include labels (transformers).

    Attributes:
        shift: 1 if the loss compares a token with the next label, as language models do, else 0. `look` determines it from the
            tokens that the loss depends on.
    """

    shift = 0

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = returned_loss(outputs)
        if loss is None:
            raise UserError(
                "the net's forward takes `labels`, so it is measured with the loss that it returns, but it returned none with "
                "these outputs: give the LightningModule a method loss(outputs, labels), or pass `loss`."
            )
        return loss

    def look(self, net: nn.Module, inputs: Any) -> None:
        """Find out which outputs the loss depends on, from its gradient for the sample with the most labels."""
        labels = inputs.named["labels"]
        if not _of_tokens(labels):
            return
        one = inputs[int((labels != IGNORED).flatten(1).sum(1).argmax()) :][:1]
        counts = one.named["labels"] != IGNORED
        weights = {name: weight.detach() for name, weight in unwrapped(net).named_parameters()}
        with torch.enable_grad():
            weights = {name: w.requires_grad_(w.is_floating_point()) for name, w in weights.items()}  # also frozen ones
            outputs = outputs_of(call_with(unwrapped(net), weights, one.placed, one.named))
        loss = returned_loss(outputs)
        if loss is None or outputs.shape[:-1] != counts.shape:
            return  # said when it is asked for
        (slope,) = torch.autograd.grad(loss, behind_loss(outputs), materialize_grads=True, allow_unused=True)
        seen = slope.abs().amax(-1) > 0
        self.shift = int((seen == F.pad(counts[:, 1:], (0, 1))).sum() > (seen == counts).sum())


def scalar_loss(value: Any) -> Tensor:
    """The value of a loss as a tensor (). UserError: if it is not a tensor with one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise UserError(
            f"expected the loss of a batch as a tensor with one number, the mean over samples, got {described(value)}: "
            "return the mean, for example with reduction='mean'."
        )
    return value.reshape(())


def are_numbers(labels: Tensor) -> bool:
    """Whether labels are real or complex numbers, as of a regression, and not classes."""
    return labels.is_floating_point() or labels.is_complex()


def counted(labels: Tensor, loss: Loss) -> int:
    """Number of terms in the mean of a batch: samples or tokens whose label is not ignored.

    >>> counted(torch.tensor([3, -100]), cross_entropy), counted(torch.tensor([[3, 1], [2, -100]]), cross_entropy)
    (1, 3)
    """
    return int(counts_of(labels, loss))


def counts_of(labels: Tensor, loss: Loss) -> Tensor:
    """`counted` as a tensor, () int64, so that nothing waits for the device."""
    return _counting(labels, loss).sum()


def terms_of(labels: Tensor, loss: Loss) -> Tensor:
    """Number of terms of each sample, (B,) int64."""
    return _by_sample(_counting(labels, loss)).sum(1)


def _by_sample(values: Tensor) -> Tensor:
    """(B, ...) -> (B, n), n = 1 of (B,)."""
    return values[:, None].flatten(1)


def _counting(labels: Tensor, loss: Loss) -> Tensor:
    """Which labels count, (B, ...) bool; (B,) of labels that are no classes."""
    if are_numbers(labels):
        return torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    return _signed(labels[:, _shift(loss) :] if _of_tokens(labels) else labels).ne(ignored_label(loss))


@torch.no_grad()
def no_mean(net: Callable[[Any], Tensor], pieces: Sequence[Batch], loss: Loss) -> tuple[float, float] | None:
    """Test whether a loss is an unweighted mean over samples (or tokens): None if it is.

    Otherwise its value for a few samples together, and the mean of its values for each one alone. With a sum or a weighted mean,
    what is measured would depend on how the samples are batched.

    Args:
        net: inputs -> outputs.
        pieces: batches of samples, a few of which are tried.
        loss: (outputs, labels) -> loss.

    >>> x, labels = torch.zeros(2, 1), torch.zeros(2, 1)
    >>> no_mean(lambda x: x + 3, [(x, labels)], nn.MSELoss(reduction="sum"))
    (18.0, 9.0)
    """
    inputs, labels = _few(pieces)
    together, alone = net(inputs), [net(one) for one in inputs.split(1)]
    tried = [labels]
    # Which samples of one class would hide, and maps with about the same share of each class.
    if not are_numbers(labels) and (classes := _weighted_classes(loss)):
        of_each = torch.arange(len(labels), device=labels.device) % classes
        # Contiguous, as a loss may flatten them by `view`.
        tried.append(of_each.view(-1, *(1,) * (labels.ndim - 1)).expand_as(labels).contiguous())
    for given in tried:
        terms = torch.stack([counts_of(label, loss) for label in given.split(1)])
        losses = torch.stack([scalar_loss(loss(*one)).double() for one in zip(alone, given.split(1))])
        mean = losses.where(terms > 0, 0) @ terms.double() / terms.sum()
        of_all = scalar_loss(loss(together, given)).double()
        # NaN of one sample alone and not of all: its class has no weight, or the loss compares samples.
        if bool(terms.any()) and not bool(torch.isclose(of_all, mean, rtol=1e-3, atol=1e-6, equal_nan=True)):
            return float(of_all), float(mean)
    return None


def _weighted_classes(loss: Any) -> int:
    """Of how many classes a loss of torch's has a weight each; 0: of none, as far as it tells."""
    loss = loss.criterion if isinstance(loss, LossOfMaps | LossOfTokens) else loss
    weight = getattr(loss, "weight", None)
    return len(weight) if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and isinstance(weight, Tensor) else 0


def _few(pieces: Sequence[Batch]) -> Batch:
    """At most `TRIED` samples, evenly spread over pieces of one form.

    No more than the largest one has, which says what fits into memory, but two at least: one alone is its own mean.

    >>> _few([(torch.arange(3), torch.arange(3)), (torch.arange(3, 16), torch.arange(3, 16))])[1].tolist()
    [0, 2, 4, 6, 8, 10, 12, 14]
    """
    alike = of_one_form(pieces)
    some, of_some = zip(*evenly_spread(alike, max(2, min(TRIED, max(len(labels) for _, labels in alike)))))
    return joined(some), torch.cat(of_some)


def of_one_form(batches: Sequence[Batch]) -> list[Batch]:
    """The batches with the shape and type that most samples have: sequences of different lengths cannot be joined.

    >>> one, two = torch.zeros(1, 5), torch.zeros(2, 9)
    >>> [len(labels) for _, labels in of_one_form([(two, torch.zeros(2)), *[(one, torch.zeros(1))] * 3])]
    [1, 1, 1]
    """
    samples = Counter[Any]()
    for batch in batches:
        samples[form_of(batch)] += len(batch[1])
    ((form, _),) = samples.most_common(1)
    return [batch for batch in batches if form_of(batch) == form]


def evenly_spread(batches: Sequence[Batch], count: int) -> Iterator[Batch]:
    """``count`` samples, evenly spread over all batches (all if there are fewer), each in a part of its batch."""
    total, start = sum(len(labels) for _, labels in batches), 0
    few = min(count, total)
    for inputs, labels in batches:
        first, last = (-(-number * few // total) for number in (start, start + len(labels)))  # samples before and after
        rows = torch.tensor([number * total // few - start for number in range(first, last)], device=labels.device)
        if len(rows):
            yield inputs[rows], labels[rows]
        start += len(labels)


def wrong(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor | None:
    """Number of terms (`counted`) that are classified wrongly, (); None if the labels are not classes of these outputs."""
    outputs, labels = _aligned(outputs, labels, loss)
    if not _of_classes(outputs, labels):
        return None
    return ((outputs.argmax(1) != labels) & (labels != ignored_label(loss))).sum()


def outside_classes(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Mask of labels that count but are not classes of these outputs, such as labels that only the loss itself ignores."""
    outputs, labels = _aligned(outputs, labels, loss)
    return ((labels < 0) | (labels >= outputs.shape[1])) & (labels != ignored_label(loss))


def of_samples(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """Cross-entropy and error rate of each sample, (2, B) float64: means over its terms.

    NaN for samples without a label that counts, or with a label that is not a class.

    >>> of_samples(torch.zeros(2, 3), torch.tensor([0, 7])).tolist()  # guessing among three
    [[1.0986122886681098, nan], [0.0, nan]]
    """
    given = outputs, labels
    outputs, labels = _aligned(outputs.double(), labels, loss)
    if not _of_classes(outputs, labels):
        return torch.full((2, len(labels)), torch.nan, dtype=torch.float64, device=labels.device)
    strange = outside_classes(*given, loss)
    counts = labels != ignored_label(loss)
    losses = F.cross_entropy(outputs, labels.masked_fill(~counts | strange, IGNORED), reduction="none")
    errors = ((outputs.argmax(1) != labels) & counts).double()
    means = torch.stack([_by_sample(each).sum(1) / _by_sample(counts).sum(1) for each in (losses, errors)])
    return means.masked_fill(_by_sample(strange).any(1), torch.nan)


def are_classes(outputs: Tensor, labels: Tensor, loss: Loss) -> bool:
    """Whether every label that counts is a class of these outputs."""
    return _of_classes(*_aligned(outputs, labels, loss)) and not bool(outside_classes(outputs, labels, loss).any())


def _of_classes(outputs: Tensor, labels: Tensor) -> bool:
    """Whether outputs (B, classes, ...) of at least two classes fit labels (B, ...)."""
    integers = not are_numbers(labels) and outputs.ndim == labels.ndim + 1
    return integers and outputs.shape[1] > 1 and (outputs.shape[0], *outputs.shape[2:]) == labels.shape


def rows_of(outputs: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """The outputs of each term, (n, classes), and its label, (n,)."""
    outputs, labels = _aligned(outputs, labels, loss)
    (counts,) = (labels.flatten() != ignored_label(loss)).nonzero(as_tuple=True)
    return outputs.movedim(1, -1).flatten(0, -2)[counts], labels.flatten()[counts]


def _of_tokens(labels: Tensor) -> bool:
    return labels.ndim > 1 and not are_numbers(labels)


def _aligned(outputs: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Each output beside the label that it is compared with, classes second."""
    labels = _signed(labels)
    if (shift := _shift(loss)) and _of_tokens(labels):
        outputs, labels = outputs[:, :-shift], labels[:, shift:]
    return classes_second(outputs, labels, loss), labels


def _signed(labels: Tensor) -> Tensor:
    """Labels as classes that can be compared with an ignored one: of uint8, to which PyTorch would convert it, -100 is 156."""
    return labels.long() if labels.dtype in (torch.bool, torch.uint8) else labels


def _shift(loss: Loss) -> int:
    return getattr(loss, "shift", 0)


def ignored_label(loss: Loss) -> int:
    """The label of samples or tokens that do not count."""
    return getattr(loss, "ignore_index", IGNORED)
