"""Losses of labels a sample and of labels a token: what the mean of a batch is over, and what is wrong in it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.calls import IGNORED, call, outputs_of, returned_loss
from lightning_app.common.errors import UserError

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) -> mean of the batch, ()


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats, over samples or over tokens whose label is not -100.

    Raises:
        UserError: for labels that are no classes.

    >>> logits = torch.zeros(2, 3, 4)  # two sequences of three tokens, four classes
    >>> round(float(cross_entropy(logits, torch.tensor([[1, 2, 0], [3, -100, -100]])).exp()))
    4
    """
    if labels.is_floating_point():
        raise UserError(
            f"without a loss of its own a module is measured with the cross-entropy, which needs classes as labels, got "
            f"{labels.dtype} of shape {tuple(labels.shape)}: give the LightningModule a method loss(outputs, labels), or pass "
            "`loss`."
        )
    return F.cross_entropy(classes_second(outputs, labels), labels)


def classes_second(outputs: Tensor, labels: Tensor) -> Tensor:
    """Outputs of tokens (B, T, classes) as PyTorch's losses take them, (B, classes, T); any others as they are."""
    of_tokens = outputs.ndim == 3 and outputs.shape[:2] == labels.shape
    return outputs.movedim(-1, 1) if of_tokens else outputs


class ReturnedLoss:
    """The loss that a net returns with its outputs, when it is given labels among its inputs (transformers).

    Attributes:
        shift: 1 where a token is compared with the next label, as language models do, else 0: the labels that the loss does not
            look at tell (`look`).
    """

    shift = 0

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        loss = returned_loss(outputs)
        if loss is None:
            raise UserError(
                "the net's forward takes `labels`, so that it is measured with the loss that it returns, and it returned none "
                "with these outputs: give the LightningModule a method loss(outputs, labels), or pass `loss`."
            )
        return loss

    @torch.no_grad()
    def look(self, net: nn.Module, inputs: Any) -> None:
        """Find out whether the first label of a sequence counts, from one sample."""
        one = inputs[:1]
        if one.named["labels"].ndim != 2 or one.named["labels"].is_floating_point():
            return
        found = []
        for first in (0, IGNORED):
            one.named["labels"] = torch.zeros_like(one.named["labels"])
            one.named["labels"][:, 0] = first
            loss = returned_loss(outputs_of(call(net, one)))
            if loss is None:
                return  # said when it is asked for
            found.append(float(loss))
        self.shift = int(found[0] == found[1])


def counted(labels: Tensor, loss: Loss) -> int:
    """How many terms the mean of a batch is over: samples, or tokens whose label counts.

    >>> counted(torch.tensor([3, 1]), cross_entropy), counted(torch.tensor([[3, 1], [2, -100]]), cross_entropy)
    (2, 3)
    """
    return int(_counts(labels, loss).sum()) if _of_tokens(labels) else len(labels)


def wrong(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor | None:
    """How many of the terms (`counted`) are classified wrongly, (); None where the labels are no classes of these outputs."""
    if labels.is_floating_point() or outputs.ndim != labels.ndim + 1 or outputs.shape[:-1] != labels.shape:
        return None
    outputs, labels = _aligned(outputs, labels, loss)
    return ((outputs.argmax(-1) != labels) & (labels != _ignored(loss))).sum()


def of_samples(outputs: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """Cross-entropy and share misclassified of each sample, (2, B) float64: means over its tokens where it has several."""
    outputs, labels = _aligned(outputs, labels, loss)
    if not _of_tokens(labels):
        losses = F.cross_entropy(outputs.double(), labels, reduction="none")
        return torch.stack([losses, (outputs.argmax(1) != labels).double()])
    outputs, counts = classes_second(outputs, labels).double(), labels != _ignored(loss)
    losses = F.cross_entropy(outputs, labels.masked_fill(~counts, IGNORED), reduction="none")
    errors = ((outputs.argmax(1) != labels) & counts).double()
    return torch.stack([each.flatten(1).sum(1) / counts.flatten(1).sum(1) for each in (losses, errors)])


def rows_of(outputs: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """A row of outputs (n, classes) for each term, and its label (n,)."""
    outputs, labels = _aligned(outputs, labels, loss)
    if not _of_tokens(labels):
        return outputs, labels
    (counts,) = (labels.flatten() != _ignored(loss)).nonzero(as_tuple=True)
    return classes_second(outputs, labels).movedim(1, -1).flatten(0, -2)[counts], labels.flatten()[counts]


def _of_tokens(labels: Tensor) -> bool:
    return labels.ndim > 1 and not labels.is_floating_point()


def _counts(labels: Tensor, loss: Loss) -> Tensor:
    return labels[:, _shift(loss) :] != _ignored(loss)


def _aligned(outputs: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Each output beside the label that it is compared with."""
    shift = _shift(loss)
    return (outputs[:, :-shift], labels[:, shift:]) if shift and _of_tokens(labels) else (outputs, labels)


def _shift(loss: Loss) -> int:
    return getattr(loss, "shift", 0)


def _ignored(loss: Loss) -> int:
    return getattr(loss, "ignore_index", IGNORED)
