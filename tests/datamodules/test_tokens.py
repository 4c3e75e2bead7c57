"""Texts and tasks of tokens: against their definitions written out token by token, and under a trainer like other data."""

import itertools
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_app.common.errors import UserError
from lightning_app.datamodules import KHop, ModularAddition, Tokens
from lightning_app.datamodules.tokens import _moved
from lightning_app.datamodules.trained_on import PIECE, digest
from tests.helpers import built

TEXT = "".join(random.Random(0).choices("abc dé\n", k=400))


@pytest.fixture
def text(tmp_path) -> Path:
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    return tmp_path / "text.txt"


def characters(data: Tokens, tokens: Tensor) -> str:
    alphabet = sorted(set(TEXT))
    assert [repr(letter)[1:-1] for letter in alphabet] == list(data.class_names)
    return "".join(alphabet[int(token)] for token in tokens)


@pytest.mark.parametrize(("stride", "tokens"), [(1, 100), (3, 98), (20, 40)])
def test_another_device_gets_the_text_and_not_each_window(stride, tokens):
    windows = torch.arange(101)[:-1].unfold(0, 8, stride)
    moved = _moved(windows, torch.device("meta"))
    assert moved.shape == windows.shape and moved.untyped_storage().nbytes() == 8 * tokens
    assert torch.equal(_moved(windows, torch.device("cpu")), windows)


@pytest.mark.parametrize("stride", [1, 3, 20])
def test_every_window_is_a_piece_of_the_text_and_its_label_the_next_character(text, stride):
    data = Tokens(str(text), level="character", context=8, stride=stride, val_size=5)
    where = {}
    for split in ("train", "val", "test"):
        windows, labels = data.of_split(split)
        assert windows.shape[1:] == data.sample_shape
        pieces = [characters(data, row) + characters(data, label.view(1)) for row, label in zip(windows, labels)]
        where[split] = [TEXT.index(pieces[0]), TEXT.index(pieces[-1])]
        assert pieces == [TEXT[start : start + 9] for start in range(where[split][0], where[split][1] + 1, stride)]
    assert where["train"][0] == 0 and where["test"][0] == 360
    assert where["train"][1] + 9 <= where["val"][0] and where["val"][1] + 9 <= where["test"][0]
    assert len(data.of_split("val")[1]) == 5
    # no window more could be trained on, tested on, or left between the parts
    assert where["train"][1] + stride + 9 > where["val"][0] and where["test"][1] + stride + 9 > len(TEXT)
    assert where["val"][1] + stride + 9 > 360


def test_bytes_of_anything(tmp_path):
    (tmp_path / "any").write_bytes(bytes(range(256)) * 2)
    data = Tokens(str(tmp_path / "any"), context=4, test_share=0.5)
    windows, labels = data.of_split("train")
    assert data.num_classes == 256 and (windows.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert windows[10].tolist() == [10, 11, 12, 13] and labels[10] == 14 and len(labels) == 252
    (tokens, answers), *_ = data.train_dataloader()
    assert tokens.dtype == torch.int64 and torch.equal(answers, tokens[:, -1] + 1)


def test_a_validation_part_that_leaves_no_window_is_refused(text):
    with pytest.raises(UserError, match="val_size must leave some"):
        Tokens(str(text), level="character", context=8, val_size=350).setup()


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, {}, "nothing.txt cannot be read: No such file"),
        (b"", {}, "got 0 and 0 of"),
        (b"too short", {}, "expected more than .* for training and for testing, got 8 and 1 of"),
        (b"ab" * 99 + b"\xff\xfe", {"level": "character"}, "not UTF-8: byte 198 is 0xff"),
        (b"ab" * 99, {"test_share": 1.0}, "above 0 and below 1, got 1.0"),
        (b"ab" * 99, {"context": 0}, "context of Tokens must be at least 1, got 0"),
    ],
)
def test_what_is_no_text_to_learn_from(tmp_path, content, options, message):
    if content is not None:
        (tmp_path / "nothing.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        Tokens(str(tmp_path / "nothing.txt"), **options).setup()


def test_a_folder_and_a_name_that_no_file_has_are_no_text(tmp_path):
    for path in (str(tmp_path), "a\0b"):
        with pytest.raises(UserError, match="cannot be read"):
            Tokens(path).setup()


def answer(tokens: list[int], hops: int) -> int | None:
    """The definition, one place at a time: places are counted from 1, and 0 is where there is none."""
    place = len(tokens)
    for _ in range(hops):
        here = tokens[place - 1]
        place = max((j for j in range(2, place + 1) if tokens[j - 2] == here), default=0)
        if not place:
            return None
    return tokens[place - 1]


@pytest.mark.parametrize(("hops", "letters", "length"), [(1, 3, 6), (2, 4, 16), (3, 4, 24), (2, 300, 500)])
def test_hops_are_those_of_the_definition(hops, letters, length):
    few = 20 if letters > 256 else 500
    data = KHop(hops=hops, letters=letters, length=length, samples=few, test_samples=few)
    for split in ("train", "test"):
        tokens, labels = data.of_split(split)
        assert tokens.shape == (few, length) and (tokens[:, 1:] != tokens[:, :-1]).all()
        assert [answer(row, hops) for row in tokens.tolist()] == labels.tolist()
    assert (data.num_classes, data.sample_shape) == (letters, (length,))
    if letters < 256:
        assert labels.bincount(minlength=letters).min() > few / letters / 2


def test_sequences_are_uniform_among_those_that_have_the_hops():
    data = KHop(hops=1, letters=3, length=4, samples=30_000)
    tokens = data.splits.train_images.long()
    possible = [row for row in torch.cartesian_prod(*[torch.arange(3)] * 4).tolist() if answer(row, 1) is not None]
    possible = [row for row in possible if all(one != other for one, other in itertools.pairwise(row))]
    counts = (tokens @ torch.tensor([27, 9, 3, 1])).bincount(minlength=81)
    expected = 30_000 / len(possible)
    assert (counts > 0).sum() == len(possible)
    assert ((counts[counts > 0] - expected) ** 2 / expected).sum() < len(possible) + 5 * (2 * len(possible)) ** 0.5


def test_every_sum_is_there_once():
    data = ModularAddition(modulus=11, train_share=0.4)
    (pairs, sums), (others, their) = data.of_split("train"), data.of_split("test")
    assert len(pairs) == int(0.4 * 121)
    assert sorted(torch.cat([pairs, others]).tolist()) == [[a, b, 11] for a in range(11) for b in range(11)]
    assert torch.equal(torch.cat([pairs, others])[:, :2].sum(1) % 11, torch.cat([sums, their]))
    assert data.num_classes == 12 and data.class_names[-1] == "=" and data.sample_shape == (3,)


@pytest.mark.parametrize(
    "make", [lambda **more: KHop(test_samples=9, **more), lambda **more: ModularAddition(modulus=7, **more)]
)
def test_everything_is_a_function_of_the_seed(make):
    before = torch.get_rng_state()
    assert make(seed=3).fingerprint() == make(seed=3).fingerprint() != make(seed=4).fingerprint()
    assert torch.equal(torch.get_rng_state(), before)


def test_fewer_sequences_are_the_first_of_more():
    few, many = (KHop(samples=count, hops=3).splits.train_images for count in (70, 9000))
    assert torch.equal(many[:70], few)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KHop(hops=20, length=22), "hardly any sequence of 22 tokens of 4 letters has 20 hops"),
        (lambda: KHop(letters=2), "letters of KHop must be at least 3, got 2"),
        (lambda: KHop(hops=0), "hops of KHop must be at least 1, got 0"),
        (lambda: ModularAddition(modulus=1), "modulus of ModularAddition must be at least 2"),
        (lambda: ModularAddition(train_share=1.0), "9409 pairs that leaves some to train and some to test on, got 1.0"),
        (lambda: ModularAddition(train_share=float("nan")), "got nan"),
    ],
)
def test_what_makes_no_task(make, message):
    with pytest.raises(UserError, match=message):
        make().setup()


def test_a_digest_does_not_depend_on_the_pieces_it_is_made_in():
    whole = torch.arange(2 * PIECE + 3)
    assert digest(whole.unfold(0, 2, 1)) == digest(whole.unfold(0, 2, 1).contiguous()) != digest(whole)


def test_a_digest_knows_where_rows_and_tensors_end():
    whole = torch.arange(12)
    assert len({digest(whole.view(shape)) for shape in ((12,), (3, 4), (4, 3), (2, 2, 3))}) == 4
    assert len({digest(whole[:size], whole[size:]) for size in (5, 6)}) == 2


@pytest.mark.parametrize(
    ("words", "classes", "shape"),
    [
        (("Tokens", "--data.path", "TEXT", "--data.context", "16"), 256, (16,)),
        (("KHop", "--data.hops", "3", "--data.length", "16"), 4, (16,)),
        (("ModularAddition", "--data.modulus", "59"), 60, (3,)),
    ],
)
def test_a_gpt_is_built_for_each_by_the_command_line(text, words, classes, shape):
    gpt = ("--model.net", "GPT", "--model.net.vocabulary", str(classes), "--model.net.context", str(shape[0]))
    cli = built("fit", "--data", *(str(text) if word == "TEXT" else word for word in words), *gpt, cwd=text.parent)
    ((_, net),) = cli.model.members
    samples, labels = cli.datamodule.of_split("test")
    assert (cli.datamodule.num_classes, cli.datamodule.sample_shape) == (classes, shape) == (classes, samples.shape[1:])
    assert net(samples[:3].long()).shape == (3, classes) and labels.max() < classes
