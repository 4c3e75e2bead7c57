"""How callbacks find a model's networks, loss and samples. Every LightningModule has defaults.

| question | answered by | otherwise |
|---|---|---|
| which networks | ``pl_module.members``: pairs (name, net) | the only child with parameters, else the module itself |
| which loss | ``pl_module.loss(outputs, labels)``, a mean | its ``criterion`` or ``loss_fn``, else cross-entropy |
| which samples | ``probe_loader()`` of the datamodule or the module | 1,000 of the training set, evenly spread |
| which networks a rank trains | ``pl_module.own``, like ``members`` | all of them |
| which rank holds the present weights of a net | ``pl_module.owners``: name -> rank | rank 0 |
| fetch the nets that other ranks train | ``pl_module.gather_members()`` | not needed |
| risks and errors (TrainingMetrics, ProgressLines, ...) | ``pl_module.metrics()``: net -> key -> number | `UserError` |

A child module is measured by its own outputs. What the module's ``forward`` does around it (normalising inputs, a softmax
before a NLLLoss) is ignored, unless ``members`` or ``loss`` say otherwise.

A loader yields pairs (inputs, labels) or dicts with ``labels`` (see `pair_of`). The loss gets one tensor, which `outputs_of`
picks from what the net returns. If a net's ``forward`` takes ``labels``, as those of transformers do, it gets them, and its own
loss is the default instead of cross-entropy.

A ``probe_loader`` gives inputs as the nets take them. Samples of a training set are read once and kept, so that every epoch is
measured on the same ones; random augmentation is seeded. Only samples that training draws from are used (those of a
SubsetRandomSampler, the batches of ``overfit_batches``). They pass ``on_before_batch_transfer`` and ``on_after_batch_transfer``
as in validation.

Measurements also call ``loss``; what it logs then is dropped. Do not update metrics in it, but in ``training_step``. It is called
without gradients: what differentiates a net in it, as a physics-informed loss, needs ``torch.enable_grad()``.
"""

import inspect
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, ref

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import RunningStage
from pytorch_lightning.utilities import move_data_to_device
from pytorch_lightning.utilities.seed import isolate_rng
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler
from torchmetrics import Metric

from callbacks.context import MeasureContext
from lightning_app.common.calls import PAIRS, described
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import evaluating, is_compiled
from lightning_app.measures.core.losses import Loss, cross_entropy
from lightning_app.runs.members import Member, members_of

PROBE, BATCH = 1000, 125  # samples of a training set, and how many at once
LOSSES = ("loss", "criterion", "loss_fn")

# By module: the loader that they are of, or what makes others in a fit, and batches. None holds the module, which may be in a
# loader's collate_fn.
_probes: WeakKeyDictionary[pl.LightningModule, tuple[ref[Any], list[Any]]] = WeakKeyDictionary()
_loaders: WeakKeyDictionary[Any, DataLoader[Any]] = WeakKeyDictionary()  # of datamodules where nothing is trained


def contexts_of(trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: float) -> list[MeasureContext]:
    """The contexts that measures get, one for each net."""
    loss = loss_of(pl_module)
    made = [
        MeasureContext(each.net, _Probe(trainer), loss, each.name, epoch=epoch, arm=each.own_arm, seed=each.seed or 0)
        for each in members_of(pl_module)
    ]
    for one in made:
        one.others = {other.arm: other.name for other in made if other.seed == one.seed and other.arm != one.arm}
    return made


def trained_here(pl_module: pl.LightningModule) -> list[Member]:
    """The nets that this rank trains, alone or with others."""
    members = members_of(pl_module)
    own = {name for name, *_ in getattr(pl_module, "own", members)}
    return [member for member in members if member.name in own]


def owner_of(pl_module: pl.LightningModule, name: str) -> int:
    """The rank that has the present weights of this net between steps."""
    owners: Mapping[str, int] = getattr(pl_module, "owners", {})
    return owners.get(name, 0)


def gather_members(pl_module: pl.LightningModule) -> None:
    """Between two batches, on all ranks: distribute nets that single ranks train, so that all ranks have the same."""
    if gather := getattr(pl_module, "gather_members", None):
        gather()


def metrics_of(pl_module: pl.LightningModule, asking: pl.Callback) -> Mapping[str, Mapping[str, float]]:
    """Risks and errors by net, from the module's ``metrics()``; on all ranks, because it may sum over them.

    Raises:
        UserError: if the module has no such method. It names the callback that needs it.
    """
    metrics = getattr(pl_module, "metrics", None)
    if not callable(metrics):
        raise UserError(
            f"{type(asking).__name__} needs pl_module.metrics(), but {type(pl_module).__name__} has no such method: leave "
            f"{type(asking).__name__} out, and log risks and errors with self.log."
        )
    return metrics()


def why_unseen(nets: Iterable[nn.Module]) -> str:
    """Why hooks see nothing of training's passes through these nets; "" when they do."""
    return "compiled nets run no hooks (model.compile)" if any(map(is_compiled, nets)) else ""


# Which loss


def loss_of(pl_module: pl.LightningModule) -> Loss:
    """(outputs, labels) -> mean loss without penalty: the module's own, or cross-entropy where it has none.

    A loss with other arguments raises a UserError only when it is called, since not every measure needs a loss.
    """
    for name in LOSSES:
        loss = getattr(pl_module, name, None)
        if callable(loss) and not isinstance(loss, Metric):  # a running mean of the loss: each call would change it
            return _of_two_arguments(loss, f"{type(pl_module).__name__}.{name}")
    return cross_entropy


def _of_two_arguments(loss: Loss, where: str) -> Loss:
    try:
        inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).bind(None, None)
    except ValueError:  # a builtin tells nobody what it takes
        return loss
    except TypeError as error:
        message = (
            f"measures call {where}(outputs, labels) for the mean loss of a batch, but it takes other arguments ({error}): "
            "rename it, or give the module a method loss(outputs, labels)."
        )

        def refuse(*_: Any) -> NoReturn:
            raise UserError(message)

        return refuse
    return loss


@contextmanager
def unlogged(pl_module: pl.LightningModule) -> Iterator[None]:
    """Within it ``self.log`` does nothing, since what a module's own loss logs would count as a training batch."""
    own = vars(pl_module)
    names = ("log", "log_dict")
    before = {name: own[name] for name in names if name in own}
    own.update(dict.fromkeys(names, lambda *_, **__: None))
    try:
        yield
    finally:
        for name in names:
            del own[name]
        own.update(before)


# Which samples


@dataclass(frozen=True)
class _Probe:
    """The trainer's probe samples, requested only when a measure iterates over them."""

    trainer: pl.Trainer

    def __iter__(self) -> Iterator[Any]:
        return iter(probe_of(self.trainer))


def probe_of(trainer: pl.Trainer) -> Iterable[Any]:
    """Batches of fixed samples.

    Raises:
        UserError: if there is no probe loader, and samples of the training set cannot be read by index.
    """
    for owner in (getattr(trainer, "datamodule", None), trainer.lightning_module):
        if callable(loader := getattr(owner, "probe_loader", None)):
            return loader()
    training, module = _training_loader(trainer), trainer.lightning_module
    owner = training
    if getattr(trainer, "reload_dataloaders_every_n_epochs", 0):
        source: Any = trainer.fit_loop._data_source.instance  # a module or datamodule, or what was given to `fit`
        owner = training if source is None or isinstance(source, (list, tuple, dict)) else source
    of, batches = _probes.get(module, (None, []))
    if of is None or of() is not owner:
        batches = _taken(trainer, training)
        _probes[module] = (ref(owner), batches)
    return batches


def _training_loader(trainer: pl.Trainer) -> DataLoader[Any]:
    """The one whose samples can be taken by their number."""
    found: Any = trainer.train_dataloader
    if found is None and (data := getattr(trainer, "datamodule", None)) is not None:  # nothing is trained: `measure`
        if data not in _loaders:
            _loaders[data] = data.train_dataloader()
        found = _loaders[data]
    loader = found[0] if isinstance(found, (list, tuple)) and len(found) == 1 else found
    dataset = getattr(loader, "dataset", None)
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise UserError(
            f"measures need samples that can be read by index, but the training data, {described(found)}, has none: {PAIRS}"
        )
    return loader


def _rows(trainer: pl.Trainer, loader: DataLoader[Any]) -> np.ndarray:
    """Evenly spread over those that are trained on, since a set may be sorted by class."""
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    sampler = getattr(getattr(sampler, "dataset", None), "_sampler", sampler)  # in Lightning's, of several ranks
    drawn = np.arange(len(loader.dataset))  # type: ignore[arg-type]  # a Dataset of torch has no __len__; checked above
    if isinstance(sampler, SubsetRandomSampler):
        drawn = np.sort(np.asarray(sampler.indices))
    batches = trainer.num_training_batches
    # The same ones in every epoch, from the front.
    if getattr(trainer, "overfit_batches", 0) and math.isfinite(batches):
        size: int = getattr(loader.batch_sampler, "batch_size", 1)
        drawn = drawn[: int(batches) * size]
    few = min(PROBE, len(drawn))
    return drawn[np.arange(few) * len(drawn) // few]


def _taken(trainer: pl.Trainer, loader: DataLoader[Any]) -> list[Any]:
    """Batches as the net gets them in validation, kept on the CPU; random draws are seeded."""
    taken, stage, module, rows = [], trainer.state.stage, trainer.lightning_module, _rows(trainer, loader).tolist()
    with isolate_rng(), evaluating(module):
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        try:
            trainer.state.stage = RunningStage.VALIDATING
            for start in range(0, len(rows), BATCH):
                batch = loader.collate_fn([loader.dataset[row] for row in rows[start : start + BATCH]])
                batch = module._on_before_batch_transfer(trainer.precision_plugin.convert_input(batch))
                taken.append(move_data_to_device(trainer.strategy.batch_to_device(batch), torch.device("cpu")))
        finally:
            trainer.state.stage = stage
    return taken
