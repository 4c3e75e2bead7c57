"""One way from a result to every logger: its fields become keys.

A result is a frozen dataclass under a prefix. A number becomes the scalar ``<prefix>/<field>``, a `Histogram` a
histogram, any other tensor an array in the run folder. So a new number is a new field and nothing else. In the run
folder the member has a column of its own; elsewhere a bank of several members gets it as the key's last part:
``cushion/layer10/median/residual``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from lightning_app.measures.histogram import Histogram
from lightning_app.runs import Row
from lightning_app.runs.loggers import RunLogger, log_to_wandb

__all__ = ["Record", "emit", "log_record"]

DRAWN_BINS = 64  # a tracker draws histograms small and stores them twice: 512 bins a layer made 3 MB an epoch
WHOLE_RUN = ""  # the member of what belongs to the run as a whole


@dataclass(frozen=True)
class Record:
    """What one family has to say after one epoch."""

    epoch: int  # completed epochs
    step: int  # optimizer steps
    family: str
    scalars: dict[tuple[str, str], float]  # (member, key) -> value
    histograms: dict[tuple[str, str], Histogram]
    arrays: dict[tuple[str, str], np.ndarray]
    several: bool  # more than one member: keys need the member's name

    def key(self, member: str, name: str) -> str:
        return f"{name}/{member}" if self.several and member != WHOLE_RUN else name


def emit(
    trainer: pl.Trainer,
    epoch: int,
    family: str,
    results: Mapping[str, Mapping[str, Any]],
    whole_run: Mapping[str, float] | None = None,
) -> None:
    """Log results by member and prefix, and numbers of the whole run, to every logger. Rank zero only.

    Args:
        results: member -> prefix -> dataclass, or member -> key -> number.
        whole_run: numbers that belong to no member, e.g. what the measuring cost.
    """
    scalars = {(WHOLE_RUN, name): float(value) for name, value in (whole_run or {}).items()}
    histograms, arrays = {}, {}
    for member, by_prefix in results.items():
        for key, value in _flatten(by_prefix):
            if isinstance(value, Histogram):
                histograms[member, key] = value
            elif isinstance(value, torch.Tensor) and value.ndim:
                arrays[member, key] = value.detach().cpu().numpy()
            else:
                scalars[member, key] = float(value)
    record = Record(epoch, trainer.global_step, family, scalars, histograms, arrays, len(results) > 1)
    for logger in trainer.loggers:
        log_record(logger, record)


def _flatten(by_prefix: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for prefix, value in by_prefix.items():
        if is_dataclass(value) and not isinstance(value, Histogram):
            yield from ((f"{prefix}/{field.name}", getattr(value, field.name)) for field in fields(value))
        else:
            yield prefix, value


@singledispatch
def log_record(logger: Logger, record: Record) -> None:
    """Any other logger takes the numbers, over optimizer steps as Lightning's own do."""
    logger.log_metrics(
        {record.key(*key): value for key, value in record.scalars.items()} | {"epoch": record.epoch}, record.step
    )


@log_record.register
def _(logger: CSVLogger, record: Record) -> None:
    logger.log_metrics(
        {record.key(*key): value for key, value in record.scalars.items()} | {"epoch": record.epoch}, record.step
    )
    logger.save()


@log_record.register
def _(logger: RunLogger, record: Record) -> None:
    logger.folder.append(
        Row(member, record.epoch, record.step, name, value) for (member, name), value in record.scalars.items()
    )
    arrays = {f"{member}/{name}": values for (member, name), values in record.arrays.items()}
    for (member, name), histogram in record.histograms.items():
        arrays[f"{member}/{name}/counts"] = histogram.counts.cpu().numpy()
        arrays[f"{member}/{name}/edges"] = histogram.edges.cpu().numpy()
        arrays[f"{member}/{name}/outside"] = np.array([histogram.below, histogram.above])
    if arrays:
        logger.folder.save_arrays(record.epoch, record.family, arrays)


@log_record.register
def _(logger: WandbLogger, record: Record) -> None:
    import wandb

    coarse = {record.key(*key): histogram.coarse(DRAWN_BINS) for key, histogram in record.histograms.items()}
    drawn = {name: wandb.Histogram(np_histogram=(h.counts.numpy(), h.edges.numpy())) for name, h in coarse.items()}
    scalars = {record.key(*key): value for key, value in record.scalars.items()}
    log_to_wandb(logger, {**scalars, **drawn}, record.epoch, record.step)


@log_record.register
def _(logger: TensorBoardLogger, record: Record) -> None:
    writer = logger.experiment
    for key, value in record.scalars.items():
        writer.add_scalar(record.key(*key), value, record.epoch)
    for key, histogram in record.histograms.items():
        edges, counts = histogram.edges.double().cpu(), histogram.counts.double().cpu()
        centres = (edges[1:] + edges[:-1]) / 2
        writer.add_histogram_raw(
            record.key(*key),
            min=float(edges[0]),
            max=float(edges[-1]),
            num=float(counts.sum()),
            sum=float((counts * centres).sum()),
            sum_squares=float((counts * centres.square()).sum()),
            bucket_limits=edges[1:].tolist(),
            bucket_counts=counts.tolist(),
            global_step=record.epoch,
        )
