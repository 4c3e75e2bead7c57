"""A checkpoint knows what it was trained on: a resume on anything else is refused with the difference."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_app.cli.extract import extract_member
from lightning_app.cli.transfer import transfer_checkpoint
from lightning_app.common.errors import UserError
from lightning_app.datamodules import Digits, GaussianMixture, ImageFolder, WhitenedDigits
from lightning_app.datamodules.pictures import Decoding
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.datamodules.synthetic import CLASSES, Synthetic
from tests.helpers import TINY, classifier, command, digits, trainer

OTHER_IMAGES = r"the same number of {} images with the same labels, but other pixels"


def served(data):
    """The datamodule after its loaders were asked for, as at a run's first checkpoint."""
    data.setup("fit")
    data.train_dataloader(), data.val_dataloader()
    return data


def refused(before, here) -> str:
    with pytest.raises(UserError, match="was trained on other data") as refusal:
        here.check_trained_on(served(before).trained_on())
    return str(refusal.value)


def allowed(before, here) -> None:
    here.check_trained_on(served(before).trained_on())


class Changed(Synthetic):
    """`Synthetic`, with its source changed by a function."""

    def __init__(self, change, **options):
        super().__init__(**options)
        self.change = change

    def load(self):
        return self.change(super().load())


def with_another(part: str, row: int = 5):
    """One pixel, or one label, of one row another one."""

    def change(splits):
        tensor = getattr(splits, part).clone()
        tensor[(row, *(0,) * (tensor.ndim - 1))] = (tensor[(row, *(0,) * (tensor.ndim - 1))] + 1) % len(CLASSES)
        return replace(splits, **{part: tensor})

    return Changed(change)


def with_labels(change):
    return Changed(lambda splits: replace(splits, train_labels=change(splits.train_labels)))


def test_the_same_data_are_let_through():
    for make in (
        Synthetic,
        Digits,
        GaussianMixture,
        lambda: WhitenedDigits(components=3),
        lambda: Synthetic(val_size=9),
    ):
        allowed(make(), make())


def test_what_is_saved_is_plain(tmp_path):
    """Weights-only loading takes it, and gives back what was saved."""
    saved = served(Synthetic(val_size=9)).trained_on()
    torch.save(saved, tmp_path / "saved")
    assert torch.load(tmp_path / "saved", weights_only=True) == saved
    assert saved["splits"].keys() == {"train", "val", "test"}
    assert saved["splits"]["train"]["counts"] == (17, 17, 17)


def test_one_pixel():
    assert OTHER_IMAGES.format("training") in refused(Synthetic(), with_another("train_images"))
    assert OTHER_IMAGES.format("test") in refused(Synthetic(), with_another("test_images"))


def test_one_label():
    assert "labels: cross 20 -> 21, blank 20 -> 19" in refused(Synthetic(), with_another("train_labels"))
    assert "the same number of test images, but other labels" in refused(Synthetic(), with_another("test_labels"))


def test_labels_of_two_images_exchanged():
    swapped = with_labels(lambda labels: labels[[1, 0, *range(2, len(labels))]])
    assert "other labels: as many of each class" in refused(Synthetic(), swapped)


def test_images_in_another_order():
    def turned(splits):
        return replace(splits, train_images=splits.train_images.flip(0), train_labels=splits.train_labels.flip(0))

    refused(Synthetic(), Changed(turned))


def test_fewer_images():
    text = refused(Synthetic(), Synthetic(train=58))
    assert "60 training images, here are 58: naught 20 -> 19, blank 20 -> 19." in text
    assert "23 test images, here are 22" in refused(Synthetic(), Synthetic(test=22))


def test_a_limit_draws_from_other_images():
    text = refused(Synthetic(train_limit=30), Synthetic(train=54, train_limit=30))
    assert "30 of 60 training images, here are 30 of 54" in text


def test_validation_images_are_never_trained_on_later():
    text = refused(Synthetic(val_size=9), Synthetic())
    assert "51 of 60 training images, here are 60: images set aside for validation would be trained on" in text
    assert "51 of 60 training images, here as many, but not" in refused(
        Synthetic(val_size=9), Synthetic(val_size=9, split_seed=1)
    )


def test_classes():
    renamed = Changed(lambda splits: replace(splits, class_names=("cross", "nought", "blank")))
    turned = Changed(lambda splits: replace(splits, class_names=CLASSES[::-1]))
    more = Changed(lambda splits: replace(splits, class_names=(*CLASSES, "full")))
    assert "other classes, label 1 was 'naught' and is 'nought' here" in refused(Synthetic(), renamed)
    assert "another order, label 0 was 'cross' and is 'blank' here" in refused(Synthetic(), turned)
    assert "3 classes (cross, naught, blank), here 4 (cross, naught, blank, ...)" in refused(Synthetic(), more)


def test_normalisation():
    assert "normalised with mean 0.5, here 0.0" in refused(Synthetic(mean=(0.5,)), Synthetic())
    assert "normalised with std (1.0, 2.0, 1.0), here 1.0" in refused(Synthetic(std=(1.0, 2.0, 1.0)), Synthetic())
    allowed(Synthetic(mean=(0.5,)), Synthetic(mean=(0.5, 0.5, 0.5)))


def test_another_dataset_of_as_many_classes():
    assert "label 0 was '0'" in refused(
        Digits(), Changed(lambda splits: replace(splits, class_names=tuple("abcdefghij")))
    )
    assert "images of shape (32, 32, 3), here (8, 8, 3)" in refused(
        Digits(), Changed(lambda splits: replace(splits, class_names=tuple("0123456789")))
    )


@pytest.mark.parametrize(
    "options",
    [
        {"augment": False},
        {"padding": 1, "flip": False},
        {"batch_size": 20, "eval_batch_size": 7},
        {"root": "elsewhere"},
        {"drop_last": True},
        {"channels_last": True},
        {"evaluate_train": False},
        {"test_limit": 11},
        {"probe_size": 5},
        {"split_seed": 3},  # nothing is split
    ],
)
def test_how_the_same_images_are_served_may_change(options):
    allowed(Synthetic(), Synthetic(**options))
    allowed(Synthetic(**options), Synthetic())


def test_vectors():
    text = refused(GaussianMixture(samples=100), GaussianMixture(samples=110))
    assert "100 training samples, here are 110: 0 10 -> 11, 1 10 -> 11, 2 10 -> 11 and 7 more" in text
    assert "with the same labels, but other values" in refused(GaussianMixture(seed=1), GaussianMixture(seed=2))
    refused(WhitenedDigits(components=3), WhitenedDigits(components=3, train_limit=100))


def test_what_was_never_looked_at_is_not_compared():
    """A run without validation reads no test pictures, and neither does its checkpoint."""
    data = Synthetic()
    data.setup("fit")
    data.train_dataloader()
    assert data.trained_on()["splits"].keys() == {"train"}


def tree(folder: Path) -> Path:
    random = np.random.default_rng(0)
    for number in range(16):
        target = folder / f"{'train' if number < 12 else 'test'}/{'ab'[number % 2]}/{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).save(target)
    return folder


def pictures(folder: Path) -> ImageFolder:
    return ImageFolder(str(folder), image_size=8, resize=8, batch_size=4)


def test_each_picture_is_decoded_once(tmp_path, monkeypatch):
    decoded, decode = [], Decoding.__call__
    monkeypatch.setattr(Decoding, "__call__", lambda self, file: (decoded.append(file), decode(self, file))[1])
    before, here = served(pictures(tree(tmp_path))), pictures(tmp_path)
    saved = before.trained_on()
    assert len(decoded) == len(set(decoded)) == 16
    here.check_trained_on(saved)
    served(here)
    assert len(decoded) == 32


def test_a_picture_that_was_replaced(tmp_path):
    saved = served(pictures(tree(tmp_path))).trained_on()
    Image.new("RGB", (9, 9)).save(tmp_path / "train/a/0.png")
    with pytest.raises(UserError, match=OTHER_IMAGES.format("training")):
        pictures(tmp_path).check_trained_on(saved)


@pytest.mark.parametrize("saved", [{}, {"splits": None}, {"splits": {"train": {"size": 3}}}, [1]])
def test_words_of_another_version_are_a_sentence(saved):
    with pytest.raises(UserError, match="cannot be read"):
        Synthetic().check_trained_on(saved)


# -- in a checkpoint --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """After one epoch on digits."""
    file = tmp_path_factory.mktemp("run") / "one.ckpt"
    run = trainer(1, plugins=[AtomicCheckpointIO()])
    run.fit(classifier(), datamodule=digits())
    run.save_checkpoint(file)
    return file


def resumed(file: Path, data):
    module, run = classifier(), trainer(2, plugins=[AtomicCheckpointIO()])
    run.fit(module, datamodule=data, ckpt_path=file)
    return module


def test_a_resume_on_other_data_is_refused_and_on_the_same_is_not(checkpoint):
    resumed(checkpoint, digits(augment=False))
    with pytest.raises(UserError, match=r"100 of 1,437 training images, here are 90 of 1,437"):
        resumed(checkpoint, digits(train_limit=90))


def test_a_resume_on_another_class_of_data_is_refused(checkpoint):
    """Lightning would not even ask the datamodule: its class has no state in the checkpoint."""

    class Mine(Digits):
        MEAN = (0.5,)

    with pytest.raises(UserError, match=r"mean 0.3051, here 0.5"):
        resumed(checkpoint, Mine(batch_size=32, train_limit=100))


def test_other_data_are_welcome_to_validate_and_test(checkpoint):
    other = digits(train_limit=90, mean=(0.1,))
    for ask in ("validate", "test"):
        getattr(trainer(1, plugins=[AtomicCheckpointIO()]), ask)(
            classifier(), datamodule=other, ckpt_path=checkpoint, verbose=False
        )


def test_a_checkpoint_from_before_resumes(checkpoint, tmp_path):
    content = AtomicCheckpointIO().load_checkpoint(checkpoint)
    del content["trained_on"]
    AtomicCheckpointIO().save_checkpoint(content, tmp_path / "old.ckpt")
    resumed(tmp_path / "old.ckpt", digits(train_limit=90))


def test_extract_and_transfer_carry_it_along(checkpoint):
    content = AtomicCheckpointIO().load_checkpoint(checkpoint)
    moved, _ = transfer_checkpoint(content)
    assert content["trained_on"] == moved["trained_on"] == extract_member(content, "plain")["trained_on"]


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with own arrays in the place of CIFAR-10, and a run of one epoch on them."""
    folder, random = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    for split, size in (("train", 40), ("test", 20)):
        save(folder, f"{split}_images", random.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8))
        save(folder, f"{split}_labels", np.arange(size) % 10)
    done = on(folder, "--trainer.max_epochs", "1")
    assert done.returncode == 0, done.stderr
    return folder


def array(folder: Path, name: str) -> Path:
    return folder / "data/cifar10" / f"{name}.npy"


def save(folder: Path, name: str, values: np.ndarray) -> None:
    array(folder, name).parent.mkdir(parents=True, exist_ok=True)
    np.save(array(folder, name), values)


def on(folder: Path, *words: str):
    data = ("--data", "CIFAR10", "--data.root", "data", "--data.train_limit", "null")
    return command(*TINY, *data, "--trainer.callbacks", "[]", *words, cwd=folder)


def one_pixel(values):
    values[3, 1, 2, 0] ^= 1
    return values


def one_label(values):
    values[3] = 4
    return values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"train_images": one_pixel}, OTHER_IMAGES.format("training")),
        ({"train_labels": one_label}, "the same number of training images, but other labels: cat 4 -> 3, deer 4 -> 5"),
        (
            {"train_images": lambda values: values[:-1], "train_labels": lambda values: values[:-1]},
            "40 training images, here are 39: truck 4 -> 3",
        ),
    ],
)
def test_own_arrays_that_changed_between_runs(trained, changes, difference):
    before = {name: np.load(array(trained, name)) for name in changes}
    kept = contents(trained)
    try:
        for name, change in changes.items():
            save(trained, name, change(before[name].copy()))
        done = on(trained, "--trainer.max_epochs", "2", "--ckpt_path", "last")
    finally:
        for name, values in before.items():
            save(trained, name, values)
    assert done.returncode == 2
    assert f"error: the checkpoint was trained on other data: {difference}" in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(trained) == kept


def contents(folder: Path) -> list[bytes]:
    """Of what a run must not lose."""
    return [file.read_bytes() for name in ("last.ckpt", "log.csv") for file in sorted(folder.rglob(name))]


@pytest.mark.slow
def test_own_arrays_that_did_not_change(trained, tmp_path):
    copy = Path(shutil.copytree(trained, tmp_path / "copy"))
    done = on(copy, "--trainer.max_epochs", "2", "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
