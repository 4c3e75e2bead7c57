"""How measures call any net: with whatever a batch holds, for one tensor of outputs and, where the net computes it, the loss.

A net may take several tensors, by position or by name, and may return a ``ModelOutput`` (transformers), a tuple or a mapping.
Measures know samples that can be cut and joined, and one tensor: `Inputs` are the samples, `adapted` makes the net take them
and return the tensor, and `pair_of` makes a batch what measures know.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped

LABELS = ("labels", "label")  # in a batch that is a mapping
OUTPUTS = ("logits", "last_hidden_state")  # of what a net returns, the first that is there
IGNORED = -100  # a label that counts in no loss, as in PyTorch and transformers
RETURNED = "_returned_loss"  # on the outputs: the loss that the net returned with them, and what it is a function of
TRAINED = "let the datamodule yield batches (inputs, labels) or dicts with labels, with inputs as the net's forward takes them."
GIVEN = "pass inputs as the net's forward takes them: a tensor, or a dict or tuple of tensors, each with a row for each label."
PAIRS = (
    "give the datamodule or the LightningModule a method probe_loader() that yields fixed batches, each (inputs, labels) or a "
    "dict with labels. With skipscope.watch, pass such batches as probe, or set pair_of."
)


class Inputs:
    """Samples of several tensors, as a net takes them: by position, by name, or both. Each tensor has one row per sample.

    They are cut, moved and converted like one tensor; integers are not converted.

    >>> both = Inputs(named={"tokens": torch.tensor([[1, 2], [3, 4]]), "mask": torch.ones(2, 2)})
    >>> len(both), [len(part) for part in both.split(1)], both[:1].named["tokens"].tolist()
    (2, [1, 1], [[1, 2]])
    """

    def __init__(self, placed: Sequence[Tensor | None] = (), named: Mapping[str, Tensor | None] | None = None) -> None:
        self.placed, self.named = tuple(placed), dict(named or {})

    @property
    def tensors(self) -> list[Tensor]:
        return [each for each in (*self.placed, *self.named.values()) if each is not None]

    @property
    def shape(self) -> torch.Size:
        """Shape of the first tensor."""
        return self.tensors[0].shape

    @property
    def device(self) -> torch.device:
        return self.tensors[0].device

    def numel(self) -> int:
        return sum(each.numel() for each in self.tensors)

    def is_floating_point(self) -> bool:
        return any(each.is_floating_point() for each in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, rows: Any) -> Self:
        return self.each(lambda each: each[rows])

    def split(self, size: int) -> list[Self]:
        return [self[start : start + size] for start in range(0, len(self), size)]

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Self:
        return self.each(lambda each: each.to(device, dtype if each.is_floating_point() else None))

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return _over([self], lambda parts: change(parts[0]))

    def without_labels(self) -> Self:
        return type(self)(self.placed, {name: value for name, value in self.named.items() if name not in LABELS})


def sample_tensors(inputs: Any) -> list[Tensor]:
    """One tensor of samples, or all that `Inputs` have."""
    return inputs.tensors if isinstance(inputs, Inputs) else [inputs]


def form_of(batch: tuple[Any, Tensor]) -> tuple[tuple[torch.Size, torch.dtype], ...]:
    """Shapes and types of a sample and a label: batches in which they are the same can be `joined`."""
    inputs, labels = batch
    return tuple((each.shape[1:], each.dtype) for each in (*sample_tensors(inputs), labels))


def joined(parts: Sequence[Any]) -> Any:
    """Samples of several pieces one after the other: tensors, or `Inputs`."""
    return _over(parts, torch.cat) if isinstance(parts[0], Inputs) else torch.cat([*parts])


def blank(inputs: Any) -> Any:
    """As many samples of zeros."""
    return inputs.each(torch.zeros_like) if isinstance(inputs, Inputs) else torch.zeros_like(inputs)


def _over(parts: Sequence[Any], change: Callable[[list[Tensor]], Tensor]) -> Any:
    def changed(values: Sequence[Tensor | None]) -> Tensor | None:
        return None if any(value is None for value in values) else change(list(values))  # type: ignore[arg-type]

    first = parts[0]
    placed = [changed(values) for values in zip(*(part.placed for part in parts))]
    return type(first)(placed, {name: changed([part.named[name] for part in parts]) for name in first.named})


def call(function: Callable[..., Any], inputs: Any) -> Any:
    """``function(inputs)``, with the several tensors of `Inputs` in their places, and copies, on which it may work in place."""
    placed, named = _own_copies((inputs,), {})
    return function(*placed, **named)


@contextmanager
def adapted(net: nn.Module) -> Iterator[None]:
    """Within it, the net also takes `Inputs`, does not change them, and returns one tensor (`outputs_of`).

    A loss that it returned with the outputs is their `returned_loss`. Nothing changes for a net that returns a tensor.
    """
    with ExitStack() as hooks:
        for hook in adapt(net):
            hooks.enter_context(hook)
        yield


def adapt(net: nn.Module) -> list[Any]:
    """The same for good, or until these handles are removed."""
    nets = {id(each): each for each in (net, unwrapped(net)) if not isinstance(each, torch.jit.ScriptModule)}
    handles = [each.register_forward_pre_hook(_unpack, with_kwargs=True) for each in nets.values()]
    return handles + [each.register_forward_hook(_outputs, with_kwargs=True) for each in nets.values()]


def _unpack(net: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """A forward pre-hook. It closes over nothing, so that dynamo shares one graph among all copies of an architecture."""
    return _own_copies(args, kwargs)


def _own_copies(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Of what a net is given, as it may work in place on it, and other passes are of the same samples."""
    if len(args) == 1 and isinstance(several := args[0], Inputs):
        args, kwargs = several.placed, several.named | kwargs
    return tuple(map(_copied, args)), {name: _copied(value) for name, value in kwargs.items()}


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _outputs(net: nn.Module, args: tuple, named: dict[str, Any], returned: Any) -> Tensor | None:
    if isinstance(returned, Tensor):
        return None
    rows = next((len(each) for each in (*args, *named.values()) if isinstance(each, Tensor) and each.ndim), None)
    return outputs_of(returned, type(net).__name__, rows)


def outputs_of(returned: Any, who: str = "a net", rows: int | None = None) -> Tensor:
    """The one tensor that measures look at: ``logits``, else ``last_hidden_state``, else the first with one row per sample.

    Args:
        returned: by a net.
        who: the net, for a message.
        rows: number of samples that it got. None: unknown; then the first tensor with rows is taken.

    Raises:
        UserError: if there is none.

    >>> found = outputs_of((torch.tensor(0.5), torch.ones(3, 2)))  # a loss first, as transformers' tuples
    >>> found.shape, returned_loss(found)
    (torch.Size([3, 2]), tensor(0.5000))
    """
    if isinstance(returned, Tensor):
        return returned
    named = returned if isinstance(returned, Mapping) else {}
    values = [*named.values()] if named else [*returned] if isinstance(returned, (tuple, list)) else []
    known = [named.get(name, getattr(returned, name, None)) for name in OUTPUTS]
    some = [each for each in values if isinstance(each, Tensor) and each.ndim]
    named_so = [each for each in known if isinstance(each, Tensor) and each.ndim]
    found = next(iter((*named_so, *(each for each in some if len(each) == rows), *some)), None)
    if found is None:
        raise UserError(
            f"measures need one tensor of outputs, but {who} returns {described(returned)}: let it return a tensor, "
            f"or name one {' or '.join(OUTPUTS)}."
        )
    first = values[0] if values and not named else None
    loss = named.get("loss", getattr(returned, "loss", first))
    if isinstance(loss, Tensor) and loss.numel() == 1:
        with_loss = found.view_as(found)  # the attribute is on this tensor, not on one that the net keeps
        setattr(with_loss, RETURNED, (loss.reshape(()), found))
        return with_loss
    return found


def returned_loss(outputs: Tensor) -> Tensor | None:
    """What the net returned as its loss with these outputs, (); None if it returned none."""
    return getattr(outputs, RETURNED, (None,))[0]


def behind_loss(outputs: Tensor) -> Tensor:
    """The tensor that the returned loss was computed from, equal to ``outputs``; ``outputs`` itself without a returned loss."""
    return getattr(outputs, RETURNED, (None, outputs))[1]


def takes(net: nn.Module, name: str) -> bool:
    """Whether its ``forward`` has an argument of this name, such as ``labels`` in nets of transformers that return a loss.

    Where it is ``forward(*args, **kwargs)`` of a PEFT model, which hands them all on, the net within counts.
    """
    outer: Any = unwrapped(net)
    taken = inspect.signature(outer.forward).parameters
    of_any = [each.kind for each in taken.values()] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    return takes(outer.get_base_model(), name) if of_any and hasattr(outer, "get_base_model") else name in taken


def pair_of(batch: Any, net: nn.Module, with_labels: bool = False, advice: str = PAIRS) -> tuple[Any, Tensor]:
    """(inputs, labels) of a batch: a tensor, or `Inputs` as the net takes them, and one tensor.

    Args:
        batch: (inputs, labels), where inputs may be a tensor, a tuple or a mapping of them; a mapping with ``labels``; or a tuple
            whose last tensor is the labels.
        with_labels: the labels are also among the inputs, for a net that computes its loss itself.
        advice: what to do about another batch, the end of the error message.

    Raises:
        UserError: for anything else.
    """
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in LABELS if name in batch), None)
        inputs: Any = {name: value for name, value in batch.items() if name not in LABELS}
    elif isinstance(batch, (tuple, list)) and len(batch) >= 2:
        *several, labels = batch
        inputs = several[0] if len(several) == 1 else several
    else:
        raise UserError(f"expected a batch (inputs, labels) or a dict with labels, got {described(batch)}: {advice}")
    if not isinstance(labels, Tensor) or not labels.ndim:
        raise UserError(
            f"expected the labels of a batch as a tensor with one row per sample, got {described(labels)} in "
            f"{described(batch)}: {advice}"
        )
    if isinstance(inputs, Tensor) and not with_labels:
        return inputs, labels
    if isinstance(inputs, Inputs):
        made = inputs
    elif isinstance(inputs, Mapping):
        made = Inputs(named=inputs)
        _check_names(made, net, advice)
    else:
        made = Inputs(inputs if isinstance(inputs, (tuple, list)) else [inputs])
    rows, given = len(labels), made.tensors
    wrong = [each for each in given if not (isinstance(each, Tensor) and each.ndim and len(each) == rows)]
    if wrong or not given:
        got = described(wrong[0]) if wrong else "none"
        raise UserError(
            f"expected the inputs of a batch as tensors with a row for each of its {rows} labels, got {got} in "
            f"{described(batch)}: {advice}"
        )
    return (Inputs(made.placed, made.named | {"labels": labels}) if with_labels else made), labels


def _check_names(inputs: Inputs, net: nn.Module, advice: str) -> None:
    taken = inspect.signature(unwrapped(net).forward).parameters
    if any(each.kind == each.VAR_KEYWORD for each in taken.values()):
        return
    if unknown := [name for name in inputs.named if name not in taken]:
        raise UserError(
            f"a batch has {', '.join(inputs.named)}, but the forward of {type(unwrapped(net)).__name__} takes "
            f"{', '.join(taken)} and not {unknown[0]}: {advice}"
        )


def described(thing: Any) -> str:
    """What something is, for an error message."""
    if isinstance(thing, Mapping):
        return f"a dict with {', '.join(map(str, thing)) or 'nothing'}"
    if isinstance(thing, Tensor):
        return f"a tensor {tuple(thing.shape)}"
    return f"a {type(thing).__name__}" + (f" of {len(thing)}" if isinstance(thing, (tuple, list)) else "")
