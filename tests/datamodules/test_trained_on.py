"""A checkpoint knows what it was trained on: a resume on anything else is refused with the difference."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_app.cli.checkpoints import extract_member, transfer_checkpoint
from lightning_app.common.errors import UserError
from lightning_app.datamodules import Digits, GaussianMixture, ImageFolder, WhitenedDigits
from lightning_app.datamodules.pictures import Decoding
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.datamodules.synthetic import CLASSES, Synthetic
from tests.helpers import classifier, digits, trainer

OTHER_VALUES = "the same number of {} samples with the same labels, but other values"


def served(data):
    """The datamodule after its loaders were made, as at a run's first checkpoint."""
    data.setup("fit")
    data.train_dataloader(), data.val_dataloader()
    return data


class Changed(Synthetic):
    """`Synthetic`, with its source changed by a function."""

    def __init__(self, change, **options):
        super().__init__(**options)
        self.change = change

    def load(self):
        return self.change(super().load())


def changed(**parts):
    """`Synthetic` with parts of its source put through functions."""

    def change(splits):
        return replace(splits, **{name: function(getattr(splits, name)) for name, function in parts.items()})

    return Changed(change)


def one_more(tensor):
    """One pixel, or one label, another one."""
    first = (5, *(0,) * (tensor.ndim - 1))
    tensor[first] = (tensor[first] + 1) % len(CLASSES)
    return tensor


DIFFERENT = [  # before, at hand, the difference
    (Synthetic(), changed(train_images=one_more), OTHER_VALUES.format("training")),
    (Synthetic(), changed(test_images=one_more), OTHER_VALUES.format("test")),
    (Synthetic(), changed(train_labels=one_more), "the same number of training samples, but other labels"),
    (Synthetic(), changed(test_labels=one_more), "the same number of test samples, but other labels"),
    (Synthetic(), changed(train_labels=lambda labels: labels[[1, 0, *range(2, 60)]]), "other labels"),
    (Synthetic(), changed(train_images=lambda x: x.flip(0), train_labels=lambda y: y.flip(0)), "training samples, but"),
    (Synthetic(), Synthetic(train=58), "60 of 60 training samples, here 58 of 58"),
    (Synthetic(), Synthetic(test=22), "23 of 23 test samples, here 22 of 22"),
    (Synthetic(train_limit=30), Synthetic(train=54, train_limit=30), "30 of 60 training samples, here 30 of 54"),
    (Synthetic(val_size=9), Synthetic(), "51 of 60 training samples, here 60 of 60"),
    (Synthetic(val_size=9), Synthetic(val_size=9, split_seed=1), "training samples, here as many, but not the same"),
    (
        Synthetic(),
        changed(class_names=lambda _: ("cross", "nought", "blank")),
        "label 1 is the class 'naught', here 'nou",
    ),
    (Synthetic(), changed(class_names=lambda names: names[::-1]), "label 0 is the class 'cross', here 'blank'"),
    (Synthetic(), changed(class_names=lambda names: (*names, "full")), "3 classes, here 4"),
    (Synthetic(mean=(0.5,)), Synthetic(), "normalised with mean (0.5,), here (0.0,)"),
    (Synthetic(std=(1.0, 2.0, 1.0)), Synthetic(), "normalised with std (1.0, 2.0, 1.0), here (1.0,)"),
    (Digits(), changed(class_names=lambda _: tuple("0123456789")), "samples of shape (32, 32, 3), here (8, 8, 3)"),
    (GaussianMixture(samples=100), GaussianMixture(samples=110), "100 of 100 training samples, here 110 of 110"),
    (GaussianMixture(seed=1), GaussianMixture(seed=2), OTHER_VALUES.format("training")),
    (WhitenedDigits(components=3), WhitenedDigits(components=3, train_limit=100), "1,437 of 1,437 training samples"),
]


@pytest.mark.parametrize(("before", "here", "difference"), DIFFERENT, ids=[case[2] for case in DIFFERENT])
def test_other_data_are_refused(before, here, difference):
    with pytest.raises(UserError) as refusal:
        here.check_trained_on(served(before).trained_on())
    assert "was trained on other data" in str(refusal.value) and difference in str(refusal.value)


@pytest.mark.parametrize(
    "make", [Synthetic, GaussianMixture, lambda: WhitenedDigits(components=3), lambda: Synthetic(val_size=9)]
)
def test_the_same_data_are_let_through(make):
    make().check_trained_on(served(make()).trained_on())


@pytest.mark.parametrize(
    "options",
    [
        {"augment": False, "padding": 1, "flip": False},
        {"batch_size": 20, "eval_batch_size": 7, "drop_last": True},
        {"root": "elsewhere", "channels_last": True, "mean": (0.0, 0.0, 0.0)},
        {"evaluate_train": False, "probe_size": 5},
        {"test_limit": 11},
        {"split_seed": 3},  # nothing is split
    ],
)
def test_how_the_same_images_are_served_may_change(options):
    Synthetic(**options).check_trained_on(served(Synthetic()).trained_on())
    Synthetic().check_trained_on(served(Synthetic(**options)).trained_on())


def test_what_is_saved_is_plain_and_only_of_what_was_read(tmp_path):
    """Weights-only loading takes it, and gives back what was saved. A run without validation reads no test pictures."""
    data = Synthetic(val_size=9)
    data.setup("fit")
    data.train_dataloader()
    assert data.trained_on()["splits"].keys() == {"train"}
    saved = served(data).trained_on()
    torch.save(saved, tmp_path / "saved")
    assert torch.load(tmp_path / "saved", weights_only=True) == saved
    assert saved["splits"].keys() == {"train", "val", "test"}


def test_each_picture_is_decoded_once_and_one_that_was_replaced_is_found(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    for number in range(16):
        target = tmp_path / f"{'train' if number < 12 else 'test'}/{'ab'[number % 2]}/{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(target)
    decoded, decode = [], Decoding.__call__
    monkeypatch.setattr(Decoding, "__call__", lambda self, file: (decoded.append(file), decode(self, file))[1])
    before, here, later = (ImageFolder(str(tmp_path), image_size=8, resize=8, batch_size=4) for _ in range(3))
    saved = served(before).trained_on()
    assert len(decoded) == len(set(decoded)) == 16
    here.check_trained_on(saved)
    served(here)
    assert len(decoded) == 32
    Image.new("RGB", (9, 9)).save(tmp_path / "train/a/0.png")
    with pytest.raises(UserError, match=OTHER_VALUES.format("training")):
        later.check_trained_on(saved)


@pytest.mark.parametrize("saved", [{}, {"splits": None}, {"splits": {"train": {"size": 3}}}, [1]])
def test_a_description_of_another_version_is_an_error(saved):
    with pytest.raises(UserError, match="cannot be read"):
        Synthetic().check_trained_on(saved)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """After one epoch on digits."""
    file = tmp_path_factory.mktemp("run") / "one.ckpt"
    run = trainer(1, plugins=[AtomicCheckpointIO()])
    run.fit(classifier(), datamodule=digits())
    run.save_checkpoint(file)
    return file


def resumed(file: Path, data) -> None:
    trainer(2, plugins=[AtomicCheckpointIO()]).fit(classifier(), datamodule=data, ckpt_path=file)


def test_a_resume_on_other_data_is_refused_and_on_the_same_is_not(checkpoint):
    resumed(checkpoint, digits(augment=False))
    with pytest.raises(UserError, match=r"100 of 1,437 training samples, here 90 of 1,437"):
        resumed(checkpoint, digits(train_limit=90))


def test_a_resume_on_another_class_of_data_is_refused(checkpoint):
    """Lightning would not even ask the datamodule: its class has no state in the checkpoint."""

    class Mine(Digits):
        MEAN = (0.5,)

    with pytest.raises(UserError, match=r"mean \(0.3051,\), here \(0.5,\)"):
        resumed(checkpoint, Mine(batch_size=32, train_limit=100))


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_other_data_may_be_evaluated_on(checkpoint, stage):
    run = getattr(trainer(1, plugins=[AtomicCheckpointIO()]), stage)
    run(classifier(), datamodule=digits(train_limit=90, mean=(0.1,)), ckpt_path=checkpoint, verbose=False)


def test_older_checkpoints_resume(checkpoint, tmp_path):
    """The oldest have no description, others also the counts of classes."""
    content = AtomicCheckpointIO().load_checkpoint(checkpoint)
    content["trained_on"]["splits"]["train"]["counts"] = (10,) * 10
    AtomicCheckpointIO().save_checkpoint(content, tmp_path / "old.ckpt")
    resumed(tmp_path / "old.ckpt", digits())
    del content["trained_on"]
    AtomicCheckpointIO().save_checkpoint(content, tmp_path / "oldest.ckpt")
    resumed(tmp_path / "oldest.ckpt", digits(train_limit=90))


def test_extract_and_transfer_copy_it(checkpoint):
    content = AtomicCheckpointIO().load_checkpoint(checkpoint)
    moved, _ = transfer_checkpoint(content)
    assert content["trained_on"] == moved["trained_on"] == extract_member(content, "plain")["trained_on"]
