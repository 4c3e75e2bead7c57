"""How results reach every logger: their fields become keys.

A result is a frozen dataclass under a prefix. A number becomes the scalar ``<prefix>/<field>``, a `Histogram` a
histogram, any other tensor an array in the run folder. So a new number needs only a new field. In the run
folder the member has its own column. Trackers have only keys, so there the keys of a bank are

    test/error/residual             with several arms: the arm is the key's last part
    test/error/residual/mean        with several seeds: mean, and sd, min, max, over them
    seed/03/test/error/residual     with several seeds: the number of one of them

and histograms of several seeds are added up. With a single arm, keys do not contain it.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property, singledispatch
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

from lightning_app.common.seeds import spell_seed
from lightning_app.measures.core.histogram import Histogram
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.loggers import RunLogger, best_effort, log_to_wandb, wandb_runs
from lightning_app.runs.members import named_members

T = TypeVar("T")

STATISTICS = ("mean", "sd", "min", "max")  # over seeds, of `lightning_app.statistics.paired.Spread`
log = logging.getLogger(__name__)
_warn_once = cache(log.warning)

DRAWN_BINS = 64  # a tracker draws histograms small and stores them twice: 512 bins a layer made 3 MB an epoch
WHOLE_RUN = ""  # the member of what belongs to the run as a whole


class LoggingCallback(pl.Callback):
    """A callback that logs results.

    Attributes:
        strict: re-raise errors of measuring and logging.
        spent: total seconds of measuring, which do not count as training time.
    """

    strict = False
    spent = 0.0


class ArmSeed(NamedTuple):
    """Arm and seed of a member of a bank."""

    arm: str
    seed: int


@dataclass(frozen=True)
class Record:
    """The results of one family at one time."""

    epoch: float  # completed epochs, within one with a fraction
    step: int  # optimizer steps
    family: str
    scalars: dict[tuple[str, str], float]  # (member, key) -> value
    histograms: dict[tuple[str, str], Histogram]
    arrays: dict[tuple[str, str], np.ndarray]
    members: dict[str, ArmSeed]  # the nets that the record is about
    by_steps: bool = False  # also measured within epochs: loggers that accept only whole numbers get steps

    def numbers(self) -> dict[str, float]:
        """Key -> value for a tracker: for each member, and over the seeds if there are several."""
        each = {self._key(member, name): value for (member, name), value in self.scalars.items()}
        return each | (self._over_seeds() if len(self._seeds) > 1 else {})

    def pooled(self) -> dict[str, Histogram]:
        """Key -> histogram for a tracker: per arm, with the counts of its seeds added up, if they can be added."""
        summed = {key: _sum(key, parts) for key, parts in self._by_arm(self.histograms).items()}
        return {key: histogram for key, histogram in summed.items() if histogram is not None}

    def of_seed(self, seed: int) -> "Record":
        """The part for the nets of one seed, and for the whole run."""
        members = {member: one for member, one in self.members.items() if one.seed == seed}
        kept = {*members, WHOLE_RUN}

        def part(results: dict[tuple[str, str], T]) -> dict[tuple[str, str], T]:
            return {key: result for key, result in results.items() if key[0] in kept}

        scalars, histograms, arrays = part(self.scalars), part(self.histograms), part(self.arrays)
        return replace(self, scalars=scalars, histograms=histograms, arrays=arrays, members=members)

    def _over_seeds(self) -> dict[str, float]:
        """Statistics of what belongs to members."""
        from lightning_app.statistics.paired import spread  # runs of one seed do without

        of_members = {key: value for key, value in self.scalars.items() if key[0] != WHOLE_RUN}
        spreads = {key: spread(values) for key, values in self._by_arm(of_members).items()}
        return {f"{key}/{name}": getattr(over, name) for key, over in spreads.items() for name in STATISTICS}

    def _by_arm(self, results: Mapping[tuple[str, str], T]) -> dict[str, list[T]]:
        """Results of one arm, seed by seed, under their common key."""
        grouped = defaultdict(list)
        for (member, name), result in results.items():
            grouped[self._arm_key(member, name)].append(result)
        return grouped

    def _key(self, member: str, name: str) -> str:
        key = self._arm_key(member, name)
        if member == WHOLE_RUN or len(self._seeds) == 1:
            return key
        return f"seed/{spell_seed(self.members[member].seed, self._seeds)}/{key}"

    def _arm_key(self, member: str, name: str) -> str:
        return name if member == WHOLE_RUN or len(self._arms) == 1 else f"{name}/{self.members[member].arm}"

    @cached_property
    def _arms(self) -> set[str]:
        return {member.arm for member in self.members.values()}

    @cached_property
    def _seeds(self) -> set[int]:
        return {member.seed for member in self.members.values()}


def log_results(
    trainer: pl.Trainer,
    epoch: float,
    family: str,
    results: Mapping[str, Mapping[str, Any]],
    whole_run: Mapping[str, float] | None = None,
    strict: bool = False,
    by_steps: bool = False,
) -> None:
    """Log results by member and prefix, and numbers of the whole run, to every logger. Rank zero only.

    If a logger raises an error, its results are lost, with one warning; errors of the run folder's logger are raised.

    Args:
        results: member -> prefix -> dataclass, or member -> key -> number.
        whole_run: numbers that belong to no member, e.g. what the measuring cost.
        strict: re-raise what loggers raise.
        by_steps: the family is measured within epochs too.

    Raises:
        MachineError: if the run folder cannot be written.
    """
    scalars = {(WHOLE_RUN, name): float(value) for name, value in (whole_run or {}).items()}
    histograms, arrays = {}, {}
    for member, by_prefix in results.items():
        for key, value in flatten(by_prefix):
            if is_number(value):
                scalars[member, key] = float(value)
            elif isinstance(value, Histogram):
                histograms[member, key] = value
            else:
                arrays[member, key] = _array(value)
    members, step = _members(trainer, results), trainer.global_step if epoch else 0
    record = Record(epoch, step, family, scalars, histograms, arrays, members, by_steps)
    for logger in trainer.loggers:
        with nullcontext() if strict or isinstance(logger, RunLogger) else best_effort(logger):
            log_record(logger, record)


def folders_of(trainer: pl.Trainer) -> list[RunFolder]:
    """The run folder, for what is not a number. Rank zero only; empty for a trainer without a `RunLogger`."""
    return [logger.folder for logger in trainer.loggers if isinstance(logger, RunLogger)]


def _members(trainer: pl.Trainer, names: Iterable[str]) -> dict[str, ArmSeed]:
    """Arms and seeds from the module's bank; without a bank each name is its own arm."""
    bank = named_members(trainer.lightning_module)
    known = [(name, bank.get(name)) for name in names]
    return {name: ArmSeed(net.own_arm, net.seed or 0) if net else ArmSeed(name, 0) for name, net in known}


def is_number(value: Any) -> bool:
    """Whether a result becomes a scalar: it is neither a histogram nor an array."""
    return not isinstance(value, Histogram) and not (isinstance(value, torch.Tensor) and value.ndim)


def _array(values: torch.Tensor) -> np.ndarray:
    """Also of a sparse tensor, and of bfloat16, which NumPy does not have, in float32."""
    dense = values.detach().to_dense()
    return (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy(force=True)


def flatten(by_prefix: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Results by key: of a dataclass every field."""
    for prefix, value in by_prefix.items():
        if is_dataclass(value) and not isinstance(value, Histogram):
            yield from ((f"{prefix}/{field.name}", getattr(value, field.name)) for field in fields(value))
        else:
            yield prefix, value


def _sum(key: str, parts: Sequence[Histogram]) -> Histogram | None:
    """None, and a warning, if edges differ: a tracker never stops a run."""
    first = parts[0]
    if not all(torch.equal(part.edges, first.edges) for part in parts):
        _warn_once(
            f"W&B and TensorBoard get no histogram '{key}': the seeds have different bins, so their counts cannot be added. "
            "The run folder has the histogram of each seed. Give the measure fixed bins to see it in W&B and TensorBoard."
        )
        return None
    return Histogram.total(parts, first.edges)


@singledispatch
def log_record(logger: Logger, record: Record) -> None:
    """Any other logger gets the numbers by optimizer step and is asked to save, both as Lightning does."""
    logger.log_metrics({**record.numbers(), "epoch": record.epoch}, record.step)
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

    for seed, run in wandb_runs(logger).items():
        own = record if seed is None else record.of_seed(seed)
        coarse = {key: histogram.coarse(DRAWN_BINS) for key, histogram in own.pooled().items()}
        drawn = {key: wandb.Histogram(np_histogram=(h.counts.numpy(), h.edges.numpy())) for key, h in coarse.items()}
        log_to_wandb(run, {**own.numbers(), **drawn}, record.epoch, record.step)


@log_record.register
def _(logger: TensorBoardLogger, record: Record) -> None:
    # Of an epoch that training has not ended, the number that it would have.
    writer, at = logger.experiment, record.step if record.by_steps else math.ceil(record.epoch)
    for key, value in record.numbers().items():
        writer.add_scalar(key, value, at)
    for key, histogram in record.pooled().items():
        edges, counts = histogram.edges.double().cpu(), histogram.counts.double().cpu()
        centres = (edges[1:] + edges[:-1]) / 2
        writer.add_histogram_raw(
            key,
            min=float(edges[0]),
            max=float(edges[-1]),
            num=float(counts.sum()),
            sum=float((counts * centres).sum()),
            sum_squares=float((counts * centres.square()).sum()),
            bucket_limits=edges[1:].tolist(),
            bucket_counts=counts.tolist(),
            global_step=at,
        )
