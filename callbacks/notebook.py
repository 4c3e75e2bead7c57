"""Measure one net in a notebook or a test: no trainer, no run folder, no command line."""

import logging
import weakref
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import yaml
from torch import Tensor, nn

import callbacks
from callbacks.context import MeasureContext
from callbacks.log import flatten, is_number
from callbacks.measure import Measure, StatefulMeasure, introduce, is_fatal
from callbacks.protocol import BATCH
from lightning_app.common.calls import GIVEN, described, pair_of
from lightning_app.common.errors import UserError, reason
from lightning_app.common.isolation import unwrapped
from lightning_app.common.provenance import configs
from lightning_app.measures.core.losses import Loss, cross_entropy

log = logging.getLogger(__name__)
_measured: WeakKeyDictionary[StatefulMeasure, weakref.ref[nn.Module]] = WeakKeyDictionary()  # which net last


def measure(
    net: nn.Module,
    inputs: Any,
    labels: Any,
    measures: Measure | Iterable[Measure] | None = None,
    loss: Loss = cross_entropy,
) -> dict[str, float]:
    """The numbers of one net on these samples, under the keys that a run's ``log.csv`` has for them.

    The net is measured in evaluation mode, on its own device; its modes, gradients and the random state are restored. For
    results that are not numbers (values of single samples, histograms) call a measure's
    ``evaluate(MeasureContext(net, [(inputs, labels)]))``.

    >>> from callbacks import WeightMass
    >>> net = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten())
    >>> _ = nn.init.constant_(net[0].weight, -2)
    >>> measure(net, torch.ones(3, 1, 1, 1), [0, 0, 0], WeightMass())["weight_mass/all"]
    2.0

    Args:
        net: maps inputs (B, ...) to outputs (B, ...).
        inputs: (n, ...), a tensor or array, preprocessed for the net; or a dict or tuple of them.
        labels: (n, ...), classes, or what the loss needs.
        measures: callbacks, such as ``[LayerCushion()]``. One that cannot measure this net raises its error; one that finds
            nothing to measure warns. One that compares (``DistanceFromStart()``) compares with the net as it was when the same
            object first got it, or first got it after another net. None: those of ``configs/measure.yaml`` that can measure the
            net; a warning names the others.
        loss: as for `MeasureContext`.

    Raises:
        UserError: if ``net`` is not a torch.nn.Module, a measure is not a `Measure`, or the numbers of inputs and labels differ.
    """
    if not isinstance(net, nn.Module):
        raise UserError(f"expected a net, a torch.nn.Module, got {described(net)}.")
    chosen = checked(shipped() if measures is None else measures)
    batches = _batches(net, inputs, _tensor("labels", labels))
    numbers: dict[str, float] = {}
    for one in chosen:
        context = MeasureContext(net, batches, loss)
        try:
            if isinstance(one, StatefulMeasure):
                _only_of(one, unwrapped(net))
                if not one.state_dict():
                    one.begin_with(context)
            found = one.within_memory(context)
        except Exception as error:  # a foreign net raises what it likes
            if measures is not None or is_fatal(error):
                raise
            log.warning(f"{type(one).__name__} cannot measure this net: {reason(error)}")
        else:
            if not found:
                what = f"{type(one).__name__} found nothing to measure in this {type(unwrapped(net)).__name__}"
                log.warning(f"{what}: no number begins with {one.family}/.")
            numbers |= {key: float(value) for key, value in flatten(found) if is_number(value)}
    return numbers


def _only_of(one: StatefulMeasure, net: nn.Module) -> None:
    """Let the measure forget what it keeps of another net."""
    if one in _measured and _measured[one]() is not net:
        one.forget()
    _measured[one] = weakref.ref(net)


def shipped(config: str = "measure.yaml") -> list[Measure]:
    """The measures of a shipped configuration, with its settings: that of the command `measure`, or base.yaml for training."""
    listed = yaml.safe_load((configs() / config).read_text(encoding="utf-8"))["trainer"]["callbacks"]
    made = [getattr(callbacks, one["class_path"])(**one.get("init_args", {})) for one in listed]
    return [one for one in made if isinstance(one, Measure)]  # not what reads a trainer's metrics


def checked(measures: Any) -> list[Measure]:
    """A list of one or several measures, each once. UserError: for anything that is not a measure."""
    found = [*measures] if isinstance(measures, Iterable) and not isinstance(measures, type) else [measures]
    for one in found:
        if not isinstance(one, Measure):
            what = f"the class {one.__name__}" if isinstance(one, type) else described(one)
            raise UserError(f"expected measures such as LayerCushion(), got {what}: see skipscope.callbacks.")
    introduce(unique := [*dict.fromkeys(found)])
    return unique


def _tensor(what: str, values: Any) -> Tensor:
    try:
        return values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"expected {what} as one tensor or array, got {described(values)}: stack them.") from error


def _are_several(inputs: Any) -> bool:
    """Whether inputs are several arguments of the net: tensors, or arrays in a tuple. A list of arrays is a list of samples."""
    arrays = (Tensor, np.ndarray) if isinstance(inputs, tuple) else Tensor
    return isinstance(inputs, (list, tuple)) and any(isinstance(each, arrays) for each in inputs)


def _batches(net: nn.Module, inputs: Any, labels: Tensor) -> list[tuple[Any, Tensor]]:
    if isinstance(inputs, Mapping):
        inputs = {name: value if value is None else _tensor(name, value) for name, value in inputs.items()}
    elif _are_several(inputs):
        inputs = [each if each is None else _tensor("inputs", each) for each in inputs]
    else:
        inputs = _tensor("inputs", inputs)
        if not inputs.ndim or inputs.shape[:1] != labels.shape[:1] or not len(inputs):
            got = f"shapes {tuple(inputs.shape)} and {tuple(labels.shape)}"
            raise UserError(f"expected inputs (n, ...) and as many labels (n, ...), n at least 1, got {got}.")
    inputs, labels = pair_of((inputs, labels), net, advice=GIVEN)
    return [*zip(inputs.split(BATCH), labels.split(BATCH), strict=True)]
