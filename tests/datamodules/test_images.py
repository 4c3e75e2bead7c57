"""The datamodule without a trainer: splits, arguments, what it tells about itself."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_app.common.batch_plan import BatchPlan
from lightning_app.common.errors import UserError
from lightning_app.datamodules import Splits
from lightning_app.datamodules.base import stratified_rows
from tests.datamodules.synthetic import CLASSES, Synthetic, rows


def test_what_it_tells_about_itself():
    data = Synthetic(val_size=9)
    data.setup()
    data.setup("fit")
    assert (data.num_classes, data.class_names, data.sample_shape) == (3, CLASSES, (3, 8, 8))
    assert data.eval_splits == ("train", "val", "test")
    assert Synthetic(evaluate_train=False).eval_splits == ("test",)
    assert data.loads == 1


def test_loaders_serve_their_splits():
    data = Synthetic(val_size=9, augment=False)
    loaders = dict(zip(data.eval_splits, data.val_dataloader()))
    seen = {name: [row for images, _ in loader for row in rows(images)] for name, loader in loaders.items()}
    assert seen["test"] == list(range(23))
    assert sorted(seen["train"] + seen["val"]) == list(range(60))
    assert (len(seen["train"]), len(seen["val"])) == (51, 9)
    assert [row for images, _ in data.test_dataloader() for row in rows(images)] == seen["test"]
    assert sorted(row for images, _ in data.train_dataloader() for row in rows(images)) == seen["train"]


def test_labels_belong_to_their_images():
    data = Synthetic(val_size=9, augment=False)
    for loader in (data.train_dataloader(), *data.val_dataloader(), data.probe_loader()):
        for images, labels in loader:
            assert [row % 3 for row in rows(images)] == labels.tolist()


def test_evaluation_on_training_images_is_not_augmented():
    plain, augmented = Synthetic(augment=False), Synthetic()
    for (images, _), (same, _) in zip(plain.val_dataloader()[0], augmented.val_dataloader()[0]):
        assert torch.equal(images, same)


def test_images_are_put_on_the_device_once_for_each_memory_format():
    data = Synthetic()
    for channels_last in (False, True, False):
        data.use_plan(BatchPlan(channels_last=channels_last))
        images, _ = next(iter(data.test_dataloader()))
        assert images.is_contiguous(memory_format=torch.channels_last) == channels_last
        assert data._on_device("test") is data._on_device("test")


def test_validation_split_is_stratified_deterministic_and_its_own():
    first, again, other = (Synthetic(val_size=12, split_seed=seed) for seed in (1, 1, 2))
    val, train = first._rows["val"], first._rows["train"]
    assert first.splits.train_labels[val].bincount().tolist() == [4, 4, 4]
    assert not set(val.tolist()) & set(train.tolist())
    assert torch.equal(val, again._rows["val"])
    assert not torch.equal(val, other._rows["val"])


def test_train_limit_is_balanced_and_grows():
    for seed in range(4):
        few, more = (Synthetic(train_limit=n, val_size=6, split_seed=seed)._rows["train"] for n in (12, 30))
        assert (few % 3).bincount().tolist() == [4, 4, 4]
        assert set(few.tolist()) < set(more.tolist())
    assert len(Synthetic(train_limit=12).train_dataloader()) == 1
    assert len(Synthetic(train_limit=1000)._rows["train"]) == 60


def test_probe_is_fixed_balanced_and_of_the_training_split():
    data = Synthetic(val_size=9, probe_size=15)
    first, again = ([(rows(images), labels) for images, labels in data.probe_loader()] for _ in range(2))
    probe = [row for batch, _ in first for row in batch]
    assert probe == [row for batch, _ in again for row in batch]
    assert torch.cat([labels for _, labels in first]).bincount().tolist() == [5, 5, 5]
    assert set(probe) <= set(data._rows["train"].tolist())
    assert [len(batch) for batch, _ in first] == [10, 5]
    drawn = [
        [rows(images) for images, _ in Synthetic(probe_size=15, split_seed=seed).probe_loader()] for seed in (1, 2)
    ]
    assert drawn[0] != drawn[1]
    assert sum(len(labels) for _, labels in Synthetic(probe_size=1000).probe_loader()) == 60


def test_fingerprint_tells_data_apart():
    assert Synthetic().fingerprint() == Synthetic(batch_size=3, val_size=2).fingerprint()
    assert len({Synthetic(train=size).fingerprint() for size in (60, 61)}) == 2
    for part in ("train_images", "train_labels", "test_images", "test_labels"):
        changed = Synthetic()
        getattr(changed.splits, part)[5] += 1
        assert changed.fingerprint() != Synthetic().fingerprint(), part


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size of Synthetic must be at least 1, got 0"),
        ({"padding": -1}, "padding of Synthetic must be at least 0, got -1"),
        ({"val_size": 60}, "val_size must leave some of the 60 training samples"),
        ({"split_seed": -1}, "split_seed of Synthetic must be at least 0"),
        ({"train_limit": 0}, "train_limit of Synthetic must be at least 1"),
        ({"mean": (0.1, 0.2)}, "mean must have one value, or one for each of the 3 channels"),
        ({"std": (0.1, 0.0, 0.1)}, "std must be positive"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Synthetic(**arguments).train_dataloader()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data(), st.integers(0, 9))
def test_stratified_rows(labels, data, seed):
    labels = torch.tensor(labels)
    size = data.draw(st.integers(0, len(labels)))
    drawn = stratified_rows(labels, size, seed)
    assert len(drawn.unique()) == size
    assert torch.equal(drawn, drawn.sort().values)
    assert torch.equal(drawn, stratified_rows(labels, size, seed))
    smaller = stratified_rows(labels, size // 2, seed)
    assert set(smaller.tolist()) <= set(drawn.tolist())
    share = labels.bincount(minlength=5) * size / len(labels)
    present = int((labels.bincount() > 0).sum())
    assert (labels[drawn].bincount(minlength=5) - share).abs().max() <= (1 + present) / 2


def test_classes_of_one_size_take_turns_at_random():
    labels = torch.arange(2000) % 40
    halves = [labels[stratified_rows(labels, 20, seed)] for seed in range(3)]
    assert all(len(set(half.tolist())) == 20 for half in halves)
    assert len({tuple(half.tolist()) for half in halves}) == 3 and max(map(max, halves)) > 30


def test_streams_of_stratified_rows_are_independent():
    labels = torch.zeros(1000, dtype=torch.int64)
    one, other = (set(stratified_rows(labels, 500, 0, stream).tolist()) for stream in (0, 1))
    assert 200 < len(one & other) < 300


def test_a_limit_on_the_test_images_keeps_the_classes_in_proportion():
    data = Synthetic(test=60, test_limit=12)
    data.setup()
    labels = torch.cat([labels for _, labels in data.test_dataloader()])
    assert labels.bincount().tolist() == [4, 4, 4]
    whole = Synthetic(test=60, test_limit=1000)
    whole.setup()
    assert sum(len(labels) for _, labels in whole.test_dataloader()) == 60


LABELS = torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train_labels": LABELS.int()}, r"train_labels .* int64, got Tensor torch.int32 \(3,\)"),
        ({"test_labels": [0, 1, 1]}, "test_labels of a data set must be a tensor .* got list"),
        (
            {"train_labels": LABELS[:2]},
            r"train_images .* a tensor of 2 samples, .* got Tensor torch.uint8 \(3, 8, 8, 3\)",
        ),
        (
            {"train_images": np.zeros((3, 8, 8, 3), np.uint8)},
            r"a tensor of 3 samples, .* got ndarray uint8 \(3, 8, 8, 3\)",
        ),
        (
            {"train_labels": LABELS + 1},
            "train_labels .* from 0 to 1, as class_names has 2 names, got labels from 1 to 2",
        ),
        ({"train_images": torch.tensor(0)}, r"a tensor of 3 samples, .* got Tensor torch.int64 \(\)"),
        ({"test_labels": LABELS - 1}, "test_labels .* got labels from -1 to 0"),
        ({"test_images": torch.zeros(3, 8, 9, 3, dtype=torch.uint8)}, r"of train_images, \(8, 8, 3\), got \(8, 9, 3\)"),
    ],
    ids=lambda value: "",
)
def test_a_data_set_of_another_kind_is_refused(given, said):
    images = torch.zeros(3, 8, 8, 3, dtype=torch.uint8)
    right = {"train_images": images, "train_labels": LABELS, "test_images": images, "test_labels": LABELS}
    Splits(**right, class_names=("a", "b"))
    with pytest.raises(UserError, match=said):
        Splits(**right | given, class_names=("a", "b"))


def test_images_that_are_no_bytes_and_a_load_that_returns_no_splits_are_refused():
    """Shares of 1 would be 0, all of them; grey levels often come without a channel."""
    grey = torch.zeros(60, 8, 8, dtype=torch.uint8)
    for images, got in (
        (torch.rand(60, 8, 8, 3), "float32 of shape (60, 8, 8, 3)"),
        (grey, "uint8 of shape (60, 8, 8)"),
    ):
        data = Synthetic()
        data.load = lambda images=images: replace(Synthetic().load(), train_images=images, test_images=images[:23])
        with pytest.raises(UserError, match=re.escape(f"(N, H, W, C), got torch.{got}: multiply values")):
            next(iter(data.train_dataloader()))
    data = Synthetic()
    data.load = lambda: (1, 2)
    with pytest.raises(UserError, match=r"load\(\) of Synthetic must return Splits, got a tuple"):
        _ = data.splits
