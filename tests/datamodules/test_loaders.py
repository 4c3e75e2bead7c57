"""Batches are a pure function of (seed, epoch, step), shares of ranks add up, and a stopped epoch continues."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_app.datamodules.images import ResidentImages
from lightning_app.datamodules.loaders import EpochLoader, EvalLoader

N = 50


def source(**options) -> ResidentImages:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (N, 6, 6, 1), dtype=torch.uint8, generator=generator)
    return ResidentImages(images, torch.arange(N), (0.0,), (1.0,), **{"padding": 2, "flip": True, **options})


SOURCE = source()


def epoch(loader: EpochLoader, number: int = 0):
    """All images and all labels (here: rows) of an epoch."""
    loader.set_epoch(number)
    images, labels = zip(*loader)
    return torch.cat(images), torch.cat(labels)


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other))


def test_pure_in_seed_and_epoch():
    torch.manual_seed(1)
    first = epoch(EpochLoader(SOURCE, 16, seed=3), 2)
    torch.manual_seed(2)
    loader = EpochLoader(SOURCE, 16, seed=3)
    epoch(loader, 7)  # what was read before does not matter
    assert same(epoch(loader, 2), first)


@pytest.mark.parametrize(("seed", "number"), [(3, 1), (2, 2), (2, 3), (4, 2)])
def test_another_seed_or_epoch_is_another_order_and_another_augmentation(seed, number):
    here = epoch(EpochLoader(SOURCE, 16, seed=3), 2)
    there = epoch(EpochLoader(SOURCE, 16, seed=seed), number)
    assert not torch.equal(here[1], there[1])
    assert not torch.equal(here[0][here[1].argsort()], there[0][there[1].argsort()])


def test_order_and_augmentation_are_drawn_apart():
    """Of two images in 400 epochs: which one comes first does not tell whether it is mirrored."""
    pair = ResidentImages(torch.zeros(2, 6, 6, 1, dtype=torch.uint8), torch.arange(2), (0.0,), (1.0,), flip=True)
    plans = (EpochLoader(pair, 2).plan(number) for number in range(400))
    counts = Counter((int(labels[0]), int(starts[0]) >= 2 * 36) for starts, labels in plans)  # mirror images lie behind
    assert len(counts) == 4 and min(counts.values()) > 60


@pytest.mark.parametrize("batch_size", [1, 7, 50, 64])
def test_batch_size_does_not_change_order_or_augmentation(batch_size):
    assert same(epoch(EpochLoader(SOURCE, batch_size), 1), epoch(EpochLoader(SOURCE, 16), 1))


def test_drawing_nothing_leaves_the_global_random_state_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    epoch(EpochLoader(SOURCE, 16))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("drop_last", "batches", "last"), [(False, 4, 2), (True, 3, 16)])
def test_last_batch(drop_last, batches, last):
    loader = EpochLoader(SOURCE, 16, drop_last=drop_last)
    sizes = [len(labels) for _, labels in loader]
    assert (len(loader), len(sizes), sizes[-1]) == (batches, batches, last)


def test_without_augmentation_images_come_as_they_are():
    plain = source(padding=0, flip=False)
    images, labels = epoch(EpochLoader(plain, 16))
    assert torch.equal(images, plain.batch(plain.starts(labels)))
    assert torch.equal(labels, epoch(EpochLoader(SOURCE, 16))[1])  # the order does not depend on it


@pytest.mark.parametrize("world", [1, 2])
def test_shares_of_the_ranks_are_the_global_batch(world):
    whole = list(EpochLoader(SOURCE, 16, seed=5))
    shares = [list(EpochLoader(SOURCE, 16, seed=5, rank=rank, world=world)) for rank in range(world)]
    for step, (images, labels) in enumerate(whole):
        for rank in range(world):
            assert same(shares[rank][step], (images[rank::world], labels[rank::world]))


def test_a_rank_without_samples_is_refused():
    with pytest.raises(ValueError, match="2 samples leaves some of the 3 processes"):
        EpochLoader(SOURCE, 16, world=3)
    assert len(EpochLoader(SOURCE, 16, world=3, drop_last=True)) == 3


@settings(max_examples=30)
@given(size=st.integers(1, 60), rows=st.integers(1, N), world=st.sampled_from([1, 2, 3, 7]))
def test_evaluation_counts_every_sample_once(size, rows, world):
    loaders = [EvalLoader(SOURCE, size, torch.arange(rows), rank=rank, world=world) for rank in range(world)]
    assert len({len(list(loader)) for loader in loaders}) == 1
    seen = [label for loader in loaders for _, labels in loader for label in labels.tolist()]
    assert sorted(seen) == list(range(rows))


def stopped_after(steps: int, number: int = 3, **options) -> dict:
    loader = EpochLoader(SOURCE, 16, **options)
    loader.set_epoch(number)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    return loader.state_dict()


def resumed(state: dict) -> EpochLoader:
    loader = EpochLoader(SOURCE, 16)
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_resume_in_the_middle_of_an_epoch(steps):
    whole = EpochLoader(SOURCE, 16)
    whole.set_epoch(3)
    loader = resumed(stopped_after(steps))
    iterator = iter(loader)  # Lightning makes the iterator first, and sets the epoch then
    loader.set_epoch(3)
    rest = list(iterator)
    assert len(rest) == len(whole) - steps
    assert all(same(one, other) for one, other in zip(rest, list(whole)[steps:]))
    assert loader.state_dict()["position"] == len(loader)


def test_the_epoch_after_a_resumed_one_is_whole():
    loader = resumed(stopped_after(2))
    loader.set_epoch(3)
    assert len(list(loader)) == 2
    assert same(epoch(loader, 4), epoch(EpochLoader(SOURCE, 16), 4))
    assert same(epoch(loader, 3), epoch(EpochLoader(SOURCE, 16), 3))


def test_a_batch_in_flight_comes_again():
    assert stopped_after(2, in_flight=lambda: 1)["position"] == 1
    assert stopped_after(0, in_flight=lambda: 1)["position"] == 0


def test_another_batch_size_in_the_middle_of_an_epoch_is_refused():
    whole = len(EpochLoader(SOURCE, 16))
    for steps in range(1, whole):
        with pytest.raises(ValueError, match=f"stopped after {steps} batches of 16, got batch_size=8"):
            EpochLoader(SOURCE, 8).load_state_dict(stopped_after(steps))
    for steps in (0, whole):
        EpochLoader(SOURCE, 8).load_state_dict(stopped_after(steps))
