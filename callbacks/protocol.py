"""How callbacks meet a model: which networks, which loss, which samples. Other people's LightningModules answer by default.

| question | who says it | otherwise |
|---|---|---|
| which networks | ``pl_module.members``: pairs (name, net) | the only child with parameters, else the module itself |
| which loss | ``pl_module.loss(outputs, labels)``, a mean | its ``criterion`` or ``loss_fn``, else cross-entropy |
| which samples | ``probe_loader()`` of the datamodule or the module | 1,000 of the training set, evenly spread |

A child is measured by its own outputs: what the module's ``forward`` does around it (a softmax before a NLLLoss, inputs
normalised) is left out, unless ``members`` or ``loss`` say otherwise.

A loader yields pairs (inputs, labels). Samples of a training set are taken once and kept, so that every epoch is measured on
the same ones; if the set augments at random, its draws are seeded.
"""

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_app.common.errors import UserError
from lightning_app.measures import needs_recalibration, recalibrated
from lightning_app.measures.curvature.hessian import MEMORY
from lightning_app.runs.members import members_of

__all__ = [
    "Pieces",
    "few_samples",
    "graph_memory",
    "handing_out",
    "loss_of",
    "members_of",
    "name_of",
    "probe_batches",
    "samples_at_once",
    "recalibrated_net",
]

SETTLING = 256  # probe samples whose statistics a normalisation gets that has seen none
PROBE, BATCH = 1000, 125  # samples of a training set, and how many at once
LOSSES = ("loss", "criterion", "loss_fn")

_probes: WeakKeyDictionary[Any, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()  # by dataset, or by loader


def name_of(trainer: pl.Trainer, net: nn.Module) -> str:
    """Under which name a net is measured."""
    return next(name for name, member in members_of(trainer.lightning_module) if member is net)


# Which loss


def loss_of(pl_module: pl.LightningModule) -> Callable[[Tensor, Tensor], Tensor]:
    """(outputs, labels) -> mean loss without penalty: the module's own, or cross-entropy where it has none.

    Raises:
        UserError: if the module's ``loss`` is something else. The cross-entropy raises it for labels that are no classes.
    """
    for name in LOSSES:
        loss = getattr(pl_module, name, None)
        if callable(loss):
            return _checked(loss, f"{type(pl_module).__name__}.{name}")
    return _cross_entropy


def _checked(loss: Callable, where: str) -> Callable[[Tensor, Tensor], Tensor]:
    try:
        inspect.signature(loss).bind(None, None)
    except TypeError as error:
        raise UserError(
            f"measures call {where}(outputs, labels) for the mean loss of a batch, and it takes other arguments ({error}): "
            "rename it, or give the module a `loss` of these two."
        ) from error
    return loss


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point():
        raise UserError(
            f"without a loss of its own a module is measured with the cross-entropy, which needs classes as labels, got "
            f"{labels.dtype} of shape {tuple(labels.shape)}: give the LightningModule a method loss(outputs, labels)."
        )
    return F.cross_entropy(outputs, labels)


# How many samples at once


@dataclass
class Pieces:
    """How many samples a measure gets at a time, and how many it got."""

    at_once: int | None = None  # at most; None: the loader's batches as they are
    largest: int = 0  # so far; 0: it has not asked for any


_pieces: ContextVar[Pieces] = ContextVar("pieces")


@contextmanager
def handing_out(pieces: Pieces) -> Iterator[None]:
    """Within it, samples come in such pieces."""
    token = _pieces.set(pieces)
    try:
        yield
    finally:
        _pieces.reset(token)


def samples_at_once() -> int | None:
    """At most so many may be in memory together, whoever puts batches together; None: no limit."""
    return _pieces.get(Pieces()).at_once


def graph_memory() -> int:
    """Bytes for graphs that a Hessian may keep: none where samples come in pieces, since there memory ran out."""
    return MEMORY if samples_at_once() is None else 0


def _in_pieces(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    pieces = _pieces.get(Pieces())
    for images, labels in batches:
        size = pieces.at_once or max(1, len(labels))
        pieces.largest = max(pieces.largest, min(size, len(labels)))
        yield from zip(images.split(size), labels.split(size), strict=True)


# Which samples


def probe_batches(trainer: pl.Trainer, net: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The fixed probe samples on the net's device, in its precision.

    Raises:
        UserError: if nobody says which they are and the training set cannot be asked; if a batch is no pair; if the net has
            no parameters.
    """
    return _in_pieces(_batches(trainer, net))


def _batches(trainer: pl.Trainer, net: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """As the loader has them."""
    like = next(net.parameters(), None)
    if like is None:
        raise UserError(f"there is nothing to measure in a {type(net).__name__} without parameters.")
    for batch in _probe(trainer):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise UserError(f"probe batches are pairs (inputs, labels), got {_described(batch)}: {_PROBE_LOADER}")
        inputs, labels = batch
        if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
            raise UserError(
                f"probe batches are two tensors (inputs, labels), got {_described(inputs)} and {_described(labels)}: "
                f"{_PROBE_LOADER}"
            )
        yield inputs.to(like.device, like.dtype if inputs.is_floating_point() else None), labels.to(like.device)


_PROBE_LOADER = "give the datamodule or the LightningModule a method probe_loader() that yields fixed (inputs, labels)."


def _probe(trainer: pl.Trainer) -> Iterable[Any]:
    for owner in (getattr(trainer, "datamodule", None), trainer.lightning_module):
        if callable(getattr(owner, "probe_loader", None)):
            return owner.probe_loader()
    loader = _loader(trainer)
    owner = loader.dataset if _is_key(loader.dataset) else loader
    if owner not in _probes:
        _probes[owner] = _taken(loader)
    return _probes[owner]


def _is_key(dataset: Any) -> bool:
    """A list of samples is none, though a loader takes it."""
    return type(dataset).__hash__ is not None and type(dataset).__weakrefoffset__ != 0


def _loader(trainer: pl.Trainer) -> DataLoader:
    """The one that samples can be taken from by number."""
    found = trainer.train_dataloader
    loader = found[0] if isinstance(found, (list, tuple)) and len(found) == 1 else found
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UserError(
            f"measuring needs samples, and the training data, {_described(found)}, cannot be asked for some by number: "
            f"{_PROBE_LOADER}"
        )
    return loader


@torch.no_grad()
def _taken(loader: DataLoader) -> list[Any]:
    """Evenly spread over the set (it may be sorted by class), put together as the loader does it."""
    total = len(loader.dataset)
    few = min(PROBE, total)
    rows = [number * total // few for number in range(few)]
    batches = [rows[start : start + BATCH] for start in range(0, few, BATCH)]
    with isolate_rng():
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        return [loader.collate_fn([loader.dataset[row] for row in batch]) for batch in batches]


def _described(thing: Any) -> str:
    if isinstance(thing, dict):
        return f"a dict with {', '.join(map(str, thing))}"
    return f"{len(thing)} of them" if isinstance(thing, (tuple, list)) else f"a {type(thing).__name__}"


def few_samples(trainer: pl.Trainer, net: nn.Module, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """So many of the probe samples, evenly spread over it (a source may be sorted by class).

    In batches that are as large as the loader's, as far as shapes allow: six samples of each of its batches by themselves
    would take a Hessian 1.3 times as long.
    """
    batches = list(_batches(trainer, net))
    return _in_pieces(_joined(_spread(batches, samples), max((len(labels) for _, labels in batches), default=0)))


def _spread(batches: Sequence[tuple[Tensor, Tensor]], samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    total, start = sum(len(labels) for _, labels in batches), 0
    few = min(samples, total)
    for images, labels in batches:
        first, last = (-(-place * few // total) for place in (start, start + len(labels)))  # samples before this batch
        rows = torch.tensor([number * total // few - start for number in range(first, last)], device=labels.device)
        if len(rows):
            yield images[rows], labels[rows]
        start += len(labels)


def _joined(batches: Iterable[tuple[Tensor, Tensor]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Neighbours together, where they are of the same shape and kind and no more than ``size`` samples."""
    held: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        alike = all((a.shape[1:], a.dtype) == (b.shape[1:], b.dtype) for a, b in zip(batch, held[0])) if held else True
        if not alike or sum(len(labels) for _, labels in (*held, batch)) > size:
            yield tuple(torch.cat(parts) for parts in zip(*held))
            held = []
        held.append(batch)
    if held:
        yield tuple(torch.cat(parts) for parts in zip(*held))


def recalibrated_net(trainer: pl.Trainer, net: nn.Module) -> nn.Module:
    """The net, or before training a copy whose normalisation has the statistics of probe samples: it has seen none yet."""
    if not needs_recalibration(net):
        return net
    images = torch.cat([images for images, _ in few_samples(trainer, net, SETTLING)])
    return recalibrated(net, images, samples_at_once())
