"""Batches that a net or a loss does not take, explained."""

import pytest
import torch
from torch import nn

from lightning_app.common.errors import UserError
from lightning_app.measures.core.losses import ReturnedLoss, cross_entropy
from lightning_app.modules.backends import Pass
from lightning_app.modules.bad_batches import explained, wrong_labels
from lightning_app.modules.cost import squared_error


@pytest.mark.parametrize("labels", [[-100, 3, 12, 10], [[1, -100], [2, 12], [10, 0], [1, 1]]], ids=["images", "tokens"])
def test_wrong_labels_are_named_and_ignored_ones_are_not(labels):
    labels = torch.tensor(labels)
    net = nn.Unflatten(0, (4, -1)) if labels.ndim > 1 else nn.Identity()
    found = wrong_labels(Pass(net, torch.zeros(labels.numel(), 10), labels, 0, cross_entropy))
    first, second = ("sample 2", "sample 3") if labels.ndim == 1 else ("token 1 of sample 1", "token 0 of sample 2")
    assert found == (
        f"{first} of the batch has label 12, {second} of the batch has label 10, and the net has outputs 0 to 9"
    )


def test_a_squared_error_ignores_no_label():
    each = Pass(nn.Identity(), torch.zeros(2, 10), torch.tensor([1, -100]), 0, squared_error)
    assert wrong_labels(each).startswith("sample 1 of the batch has label -100")


def test_a_net_that_computes_its_loss_says_itself_what_is_wrong():
    class Own(nn.Module):
        def forward(self, x):
            raise IndexError("Target 12 is out of bounds.")

    found = wrong_labels(Pass(Own(), torch.zeros(2, 10), torch.tensor([0, 12]), 0, ReturnedLoss()))
    assert found == "Target 12 is out of bounds."


def test_what_a_batch_is_to_blame_for_is_explained_and_nothing_else():
    each = Pass(nn.Identity(), torch.zeros(2, 10), torch.tensor([1, 12]), 0, cross_entropy)
    said = "member 'net' cannot be evaluated on a batch: sample 1 of the batch has label 12"
    with pytest.raises(UserError, match=said), explained("be evaluated on a batch", lambda: {"net": each}):
        each.loss(each.net(each.images), each.labels)
    with pytest.raises(RuntimeError, match="CUDA error"), explained("be evaluated on a batch", lambda: {"net": each}):
        raise RuntimeError("CUDA error")
