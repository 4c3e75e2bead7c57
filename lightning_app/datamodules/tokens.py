"""Tokens: a text of the user's, and two tasks that need no file. One prediction per sample, after its last token.

So every net that maps tokens (B, T) to logits (B, classes) is a classifier like those of images. Tokens and labels have the same
alphabet: class c is token c.
"""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lightning_app.common.errors import UserError, at_least
from lightning_app.common.files import with_home
from lightning_app.datamodules.base import ResidentData, Splits
from lightning_app.datamodules.loaders import Resident

TRAIN, TEST = range(2)  # independent streams of a seed
BLOCK = 4096  # sequences drawn at a time


class ResidentTokens(Resident):
    """One split's sequences on one device, in as few bytes as they came."""

    @override
    def batch(self, starts: Tensor) -> Tensor:
        """The tokens (B, T) int64 of some rows."""
        return super().batch(starts).long()


class TokenData(ResidentData):
    """Batches ``(tokens, labels)``: int64 (B, T), and int64 (B,), the token that follows or is the answer.

    A subclass implements `load`. Has the arguments of `ResidentData`.
    """

    eval_batch_size = 500
    sample_dtype: ClassVar[torch.dtype] = torch.int64

    @override
    def to_device(self, samples: Tensor, labels: Tensor, training: bool) -> Resident:
        return ResidentTokens(_moved(samples, self._device), labels.to(self._device))


def _moved(samples: Tensor, device: torch.device) -> Tensor:
    """Windows that overlap are a view of the text there too: a copy has each token as often as windows share it."""
    (count, length), (step, within) = samples.shape, samples.stride()
    if not (count and within == 1 and step < length):
        return samples.to(device)
    text = samples.as_strided(((count - 1) * step + length,), (1,))
    return text.to(device).as_strided((count, length), (step, 1))


class Tokens(TokenData):
    """A text, each token of which is predicted from those before it: samples are windows of ``context`` tokens, labels the next.

    The text is divided by position: its last part, ``test_share``, is for testing, and the `val_size` windows before that
    for validation. No window shares a token with one of another split. Windows overlap, so an epoch of a text of n tokens
    has about n / stride samples; `train_limit` draws some of them.

    Has the arguments of `ResidentData` too. The text is in memory once; windows that `val_size`, `train_limit` or `test_limit`
    choose are copied, ``context`` tokens each.

    Args:
        path: file of the text.
        level: "byte" (256 classes) or "character" of UTF-8 (a class for each different character in the text).
        context: tokens in a window, T.
        stride: tokens from the start of one window to the start of the next.
        test_share: share of the text, at its end, for testing, above 0 and below 1.

    Raises:
        UserError: for a text that cannot be read, is not UTF-8 where characters are asked for, or is too short.
    """

    def __init__(
        self,
        path: str,
        level: Literal["byte", "character"] = "byte",
        context: int = 64,
        stride: int = 1,
        test_share: float = 0.1,
        **of_data: Any,
    ) -> None:
        super().__init__(**of_data)
        if not 0 < test_share < 1:
            raise UserError(f"data.test_share: expected a share of the text above 0 and below 1, got {test_share}.")
        self.path = with_home(path)
        self.level = level
        self.context = at_least(1, type(self).__name__, context=context)
        self.stride = at_least(1, type(self).__name__, stride=stride)
        self.test_share = test_share
        self.sample_shape = (context,)

    @override
    def load(self) -> Splits:
        tokens, names = _bytes(self.path) if self.level == "byte" else _characters(self.path)
        cut = len(tokens) - round(self.test_share * len(tokens))
        parts = tokens[:cut], tokens[cut:]
        if min(map(len, parts)) <= self.context:
            raise UserError(
                f"expected more than {self.context} {self.level}s (data.context) for training and for testing, got "
                f"{len(parts[0]):,} and {len(parts[1]):,} of {self.path}: use a longer text, a smaller data.context or another "
                "data.test_share."
            )
        train, test = map(self._windows, parts)
        return Splits(*train, *test, names)

    def _windows(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """A view (n, T) of the tokens, and what follows each window, (n,) int64."""
        return tokens[:-1].unfold(0, self.context, self.stride), tokens[self.context :: self.stride].long()

    @override
    def divided(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """By position: the last windows are for validation, and those that reach into them are for nothing."""
        first = max(0, len(labels) - self.val_size)
        gap = self.context // self.stride if self.val_size else 0
        return torch.arange(max(0, first - gap)), torch.arange(first, len(labels))


def _bytes(path: Path) -> tuple[Tensor, tuple[str, ...]]:
    return torch.from_numpy(np.frombuffer(_read(path), np.uint8).copy()), tuple(map(str, range(256)))


def _characters(path: Path) -> tuple[Tensor, tuple[str, ...]]:
    """Their places in the sorted alphabet of the text, int32, and the alphabet as Python would quote it."""
    try:
        text = _read(path).decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8: byte {error.start:,} is {error.object[error.start]:#04x}. Convert the file, or read it byte "
            "by byte with data.level byte."
        ) from error
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet, positions = np.unique(points, return_inverse=True)
    return torch.from_numpy(positions.astype(np.int32)), tuple(repr(chr(point))[1:-1] for point in alphabet)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a name with a null character is no OSError
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"the text {path} cannot be read: {reason}. Set data.path to a file of text.") from error


class KHop(TokenData):
    """k-hop induction (Sanford, Hsu & Telgarsky 2024, "Transformers, parallel computation, and logarithmic depth").

    find(i) is the last position j <= i whose predecessor is the token at i, X_{j-1} = X_i; the answer is the token at
    find(find(... find(N))), k times from the last token. One hop is an induction head: what followed when this token was last
    seen? A transformer of floor(log2 k) + 2 layers can do it (their Theorem 4.2), and they give evidence that fewer layers
    need a width that grows with N.

    Sequences are drawn uniformly from those in which all k positions exist and no two neighbours are equal (that would be a
    hop to the same position). Guessing has an error of about 1 - 1 / letters, and of 1 - 1 / (letters - 1) for one hop.
    Everything is a pure function of ``seed``; fewer samples are the first of more.

    Has the arguments of `ResidentData` too.

    Args:
        hops: k.
        letters: size of the alphabet.
        length: tokens of a sequence, N.
        samples: training sequences.
        test_samples: test sequences.
        seed: seed of the sequences.

    Raises:
        UserError: if fewer than one sequence in a thousand has k hops.
    """

    def __init__(
        self,
        hops: int = 2,
        letters: int = 4,
        length: int = 24,
        samples: int = 20_000,
        test_samples: int = 2_000,
        seed: int = 0,
        **of_data: Any,
    ) -> None:
        super().__init__(**of_data)
        who = type(self).__name__
        self.hops = at_least(1, who, hops=hops)
        self.letters = at_least(3, who, letters=letters)  # of two, neighbours that differ leave one sequence
        self.length = at_least(2, who, length=length)
        self.samples = at_least(1, who, samples=samples)
        self.test_samples = at_least(1, who, test_samples=test_samples)
        self.seed = at_least(0, who, seed=seed)
        self.num_classes, self.sample_shape = letters, (length,)

    @override
    def load(self) -> Splits:
        train, test = (self._draw(stream, size) for stream, size in ((TRAIN, self.samples), (TEST, self.test_samples)))
        return Splits(*train, *test, tuple(map(str, range(self.letters))))

    def _draw(self, stream: int, size: int) -> tuple[Tensor, Tensor]:
        """(size, N) uint8 or int32 and answers (size,) int64."""
        random = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(stream,)))
        kept: list[tuple[Tensor, Tensor]] = []
        while (have := sum(len(answers) for _, answers in kept)) < size:
            steps = random.integers(1, self.letters, (BLOCK, self.length))
            steps[:, 0] = random.integers(0, self.letters, BLOCK)
            tokens = torch.from_numpy(steps.cumsum(1) % self.letters)
            positions = hop(tokens, self.hops)
            exist = positions > 0
            kept.append((tokens[exist], tokens.gather(1, positions.unsqueeze(1)).squeeze(1)[exist]))
            if have + len(kept[-1][1]) < BLOCK * len(kept) / 1000:
                raise UserError(
                    f"hardly any sequence of {self.length} tokens of {self.letters} letters has {self.hops} hops: choose a "
                    "larger data.length, or fewer data.hops or data.letters."
                )
        tokens, answers = (torch.cat(parts)[:size] for parts in zip(*kept))
        return tokens.to(torch.uint8 if self.letters <= 256 else torch.int32), answers


def hop(tokens: Tensor, hops: int) -> Tensor:
    """find^k of the last position, (B,) int64, counted from 0; 0 where one of the k positions does not exist.

    Args:
        tokens: (B, N) int64.
        hops: k.

    >>> hop(torch.tensor([[1, 2, 0, 1, 0, 2]]), 1)  # after the 2 came a 0
    tensor([2])
    >>> hop(torch.tensor([[1, 2, 0, 1, 0, 2]]), 2)  # and before that, 0 was not seen
    tensor([0])
    """
    count, length = tokens.shape
    positions = torch.full((count,), length - 1)
    after = torch.arange(1, length)  # a position, and the token before it
    for _ in range(hops):
        here = tokens.gather(1, positions.unsqueeze(1))
        found = (tokens[:, :-1] == here) & (after <= positions.unsqueeze(1))  # none from 0 on, which stays 0
        positions = (found * after).amax(1)
    return positions


class ModularAddition(TokenData):
    """a + b mod p: the tokens (a, b, =) and the sum, over all p^2 pairs (Power et al. 2022; Nanda et al. 2023).

    A random ``train_share`` of the pairs is for training, all others for testing. The token "=" is p; it is a class too, but
    never the answer. Everything is a pure function of ``seed``.

    Has the arguments of `ResidentData` too.

    Args:
        modulus: p.
        train_share: share of the pairs that is for training.
        seed: seed of the draw of these pairs.

    Raises:
        UserError: for a share that leaves no pair to train or to test on.
    """

    def __init__(self, modulus: int = 97, train_share: float = 0.5, seed: int = 0, **of_data: Any) -> None:
        super().__init__(**of_data)
        self.modulus = at_least(2, type(self).__name__, modulus=modulus)
        self.seed = at_least(0, type(self).__name__, seed=seed)
        if not 1 <= train_share * modulus**2 <= modulus**2 - 1:
            raise UserError(
                f"data.train_share: expected a share of the {modulus**2} pairs that leaves some to train and some to test on, "
                f"got {train_share}."
            )
        self.train_share = train_share
        self.num_classes, self.sample_shape = modulus + 1, (3,)

    @override
    def load(self) -> Splits:
        p = self.modulus
        order = np.random.default_rng(self.seed).permutation(p**2)
        a, b = torch.from_numpy(order // p), torch.from_numpy(order % p)
        tokens, sums = torch.stack([a, b, torch.full_like(a, p)], dim=1), (a + b) % p
        cut = int(self.train_share * p**2)
        return Splits(tokens[:cut], sums[:cut], tokens[cut:], sums[cut:], (*map(str, range(p)), "="))
