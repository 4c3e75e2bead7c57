"""The Hessian of a net's risk as a linear map v -> H v, for any net and loss that can be differentiated twice.

H is never formed. The gradient is computed once with its graph, g(w), and each product is one more backward pass through
that graph: H v = d<g(w), v>/dw. Kept graphs make a product cost two gradients, the least that any exact method needs
(6 forward passes: two for the tangent's forward pass, four for its backward pass). A central difference of gradients costs
the same, but is useless here because it steps over ReLU kinks.

What is differentiated is the mean loss over fixed samples, without penalty (lambda/2 ||w||^2 would shift every eigenvalue
by lambda), with BatchNorm's running statistics. At a ReLU's kink PyTorch's derivative is 0. So where exactly zero
weights make a ReLU's input 0, the Hessian is 0, whatever it is nearby (`lightning_app.theory` has the limit).

The loss is computed in float64 whatever the net's precision: the curvature of a cross-entropy is p (1 - p), and float32
cannot represent 1 - p for samples that the net has learned. So products have the net's own precision down to a mean loss of about
1e-11, and an error of 3 % at 1e-15. A net that ends in a LogSoftmax has lost 1 - p before the loss sees it: in float32 its
products are right to 2e-4 at a mean loss of 1e-4, to 6e-3 at 1e-6, and not at all below 1e-7 (in float64, ``double``, as
others).
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_app.common.calls import adapt
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import (
    attention_written_out,
    is_of_device,
    ran_out_of_memory,
    trained_weights,
    unrounded,
    with_float64,
)
from lightning_app.measures.core.hooks import (
    SAME_EACH_TIME,
    check_evaluating,
    check_not_merged,
    is_random,
    own_copy,
    shared_copy,
)
from lightning_app.measures.core.losses import NO_MEAN, Batches, Loss, counted, cross_entropy, no_mean
from lightning_app.measures.curvature.bilinear import BilinearConvolutions

CHUNK = 64 * 3 * 32 * 32  # numbers that a graph's inputs hold: 64 CIFAR images, which stay in a CPU's cache
COLUMNS = 64  # of a dense Hessian at once
MEMORY = 4 * 2**30  # bytes of kept graphs
GRAPH = 2**30  # bytes of one chunk's graph: of large nets it holds few samples
NOT_TWICE = "cannot be differentiated twice"
CHECKED = 8  # samples on which the symmetry of H is tried
# Of ||H v||: float32 leaves 1e-6 where the outputs are logits, a wrong second derivative 1e-3 and more.
ASYMMETRY = 1e-4
ROUNDING = 1e-2  # of ||H v||, in float32 behind a LogSoftmax: products are then wrong by about as much
ADVICE = "leave HessianSpectrum and DrivingForce out of trainer.callbacks (in Python: of `measures`)."
# In torch's own words; and behind a once_differentiable function, which is silently skipped, as if there were no curvature.
UNDIFFERENTIABLE = ("not implemented", "not differentiable", "differentiate twice", "incompatible with")
DEAD_END = "torch::autograd::Error"


class LossOfOwnWeights(UserError):
    """A loss that depends on weights of the net otherwise than by its outputs: none of a copy of the net."""


class Symmetric(Protocol):
    """A symmetric linear map on R^size."""

    @property
    def size(self) -> int: ...

    @property
    def like(self) -> Tensor: ...  # any tensor of the vectors' dtype and device

    def __matmul__(self, vector: Tensor) -> Tensor: ...  # (size,) -> (size,)


class ParameterMap:
    """Base of linear maps on vectors whose length is that of all chosen parameters together."""

    parameters: dict[str, nn.Parameter]

    @property
    def like(self) -> Tensor:
        return next(iter(self.parameters.values()))

    @property
    def size(self) -> int:
        return sum(weight.numel() for weight in self.parameters.values())

    def slices(self) -> dict[str, slice]:
        """The slice of each parameter in such a vector."""
        stops = itertools.accumulate(weight.numel() for weight in self.parameters.values())
        return {
            name: slice(stop - weight.numel(), stop) for (name, weight), stop in zip(self.parameters.items(), stops)
        }


class Hessian(ParameterMap):
    """The Hessian of the mean loss over samples with respect to a net's trainable parameters, flattened in their order.

    Args:
        net: inputs -> outputs, in evaluation mode as far as BatchNorm and dropout go; compiled or not.
        batches: (inputs, labels) on the net's device, of any batch size. The Hessian is that of the mean over all of them.
        loss: (outputs, labels) -> unweighted mean over a batch. Batches are split, and the parts weighted by their number of
            samples, or of tokens whose label counts (`counted`).
        names: parameters to differentiate with respect to, which gives a diagonal block and is cheaper; None for all trainable
            ones.
        double: compute in float64, on a copy of the net.
        memory: bytes for kept graphs. Chunks whose graphs do not fit are recomputed in every product, which then costs 3.5
            instead of 2.1 gradients. A simplified net of depth 20 needs 1.5 MiB a CIFAR-10 image.

    Attributes:
        chunk: the most samples that are differentiated at once: as many as fit into `CHUNK` numbers and a graph of `GRAPH` bytes,
            so that memory does not grow with the number of samples. A net of 100 million parameters also needs 0.4 GB for each
            vector.

    Raises:
        UserError: for half precision, training mode, a BatchNorm without running statistics, no samples, unknown names, a loss
            that is not a mean, a net that cannot be differentiated twice, or products that are not symmetric; with ``double``
            also for a loss that depends on the net's weights otherwise than by its outputs, as a penalty does.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0]])
    >>> Hessian(net, [(x, y)], lambda out, y: (out - y).square().mean()) @ torch.tensor([1.0, 0.0])  # 2 x x^T
    tensor([2., 4.])
    """

    def __init__(
        self,
        net: nn.Module,
        batches: Batches,
        loss: Loss = cross_entropy,
        names: Sequence[str] | None = None,
        double: bool = False,
        memory: int = MEMORY,
    ) -> None:
        self._net = own_copy(net).double() if double else shared_copy(net)
        check_samples_apart(self._net, "a Hessian")
        adapt(self._net)
        self._loss = loss
        self.parameters = chosen(self._net, names)
        self._weights = list(self.parameters.values())
        self._chunks = cut(batches, loss, self.like.dtype, CHUNK)
        self._terms = sum(counted(labels, loss) for _, labels in self._chunks)
        if not self._terms:
            raise UserError(
                "a Hessian needs at least one sample whose label counts, got none: choose other probe samples."
            )
        check_not_merged(self._net, self._few()[0])
        self._loss_dtype = self._dtype_of_loss()
        self._check_loss()
        if double:
            self._check_weights(net)
        per_number = self._bytes_per_number()
        self._chunks = cut(self._chunks, loss, self.like.dtype, GRAPH, per_number)
        self.chunk = max(len(labels) for _, labels in self._chunks)
        kept = self._how_many_fit(memory, per_number)
        self._graphs = [self._gradient(*chunk) for chunk in self._chunks[:kept]]
        self._anew = self._chunks[kept:]
        self._check_symmetry()

    def point(self) -> Tensor:
        """The parameters at which the Hessian is taken, (size,)."""
        return _flat(weight.detach() for weight in self._weights)

    def gradient(self) -> Tensor:
        """The gradient of the mean loss at `point`, (size,): free for samples with kept graphs, one gradient for others."""
        parts = [*self._graphs, *(self._gradient(*chunk) for chunk in self._anew)]
        return functools.reduce(torch.add, [_flat(g.detach() for g in part) for part in parts])

    def __matmul__(self, vector: Tensor) -> Tensor:
        """H v, (size,)."""
        return _flat(self._sum(self._parts(vector)))

    def rows(self, vectors: Tensor) -> Tensor:
        """H v of several vectors at once, (k, size) -> (k, size): faster for small nets, whose cost is kernel launches."""
        parts = self._sum(self._parts(vectors), batched=True)
        return torch.cat([part.reshape(len(vectors), -1) for part in parts], 1)

    def _parts(self, vectors: Tensor) -> list[Tensor]:
        """One or several vectors, (..., size), in the parameters' shapes."""
        split = vectors.split([weight.numel() for weight in self._weights], dim=-1)
        return [part.reshape((*vectors.shape[:-1], *weight.shape)) for part, weight in zip(split, self._weights)]

    def _sum(self, parts: list[Tensor], batched: bool = False) -> list[Tensor]:
        total = [torch.zeros_like(part) for part in parts]
        for gradient in self._graphs:
            torch._foreach_add_(total, self._backward(gradient, parts, batched, keep=True))
        for chunk in self._anew:
            torch._foreach_add_(total, self._backward(self._gradient(*chunk), parts, batched, keep=False))
        return total

    def _gradient(self, inputs: Any, labels: Tensor) -> tuple[Tensor, ...]:
        """This chunk's share of the gradient, with its graph."""
        with _twice(self._net), torch.enable_grad(), attention_written_out(), BilinearConvolutions(self._weights):
            loss = self._loss(*self._for_loss(self._net(inputs), labels))
            share = loss * (counted(labels, self._loss) / self._terms)
            gradient = torch.autograd.grad(share, self._weights, create_graph=True, materialize_grads=True)
        if any(node.name() == DEAD_END for node in _graph(gradient)):
            raise UserError(
                f"{type(self._net).__name__} {NOT_TWICE}, because it contains a once_differentiable function: {ADVICE}"
            )
        return gradient

    def _for_loss(self, *tensors: Any) -> list[Any]:
        return _in_dtype(self._loss_dtype, *tensors)

    def _few(self) -> tuple[Tensor, ...]:
        return tuple(part[:CHECKED] for part in self._chunks[0])

    @torch.no_grad()
    def _dtype_of_loss(self) -> torch.dtype:
        """float64, or float32 where the loss has tensors of its own that are not."""
        inputs, labels = self._few()
        outputs = self._net(inputs)
        try:
            self._loss(*_in_dtype(torch.float64, outputs, labels))
        except Exception as error:  # a foreign loss refuses as it likes; what else is wrong shows when it is computed
            if is_of_device(error):
                raise
            return torch.float32
        return torch.float64

    def _check_symmetry(self) -> None:
        """Check u.Hv = v.Hu on a few samples; if it fails there (they may be the best learned ones), on all.

        A difference comes from rounding, which vanishes in float64, or from a wrong second derivative of autograd, which a single
        product does not show.
        """
        few = self._gradient(*self._few())
        on_few = self._asymmetry(lambda parts: self._backward(few, parts, batched=False, keep=True))
        if on_few <= ASYMMETRY or (found := self._asymmetry(self._sum)) <= ASYMMETRY:
            return
        if not self._symmetric_in_float64():
            raise UserError(
                f"a Hessian is symmetric, but autograd's second derivative of {type(self._net).__name__} is not: u.Hv and v.Hu "
                f"differ by {found:.1g} of ||Hv||. Either an operation has a wrong second derivative (torch's weight_norm: fold "
                "it with torch.nn.utils.parametrize.remove_parametrizations), or the loss is so small, below 1e-13, that its "
                f"curvature is lost in rounding. Otherwise {ADVICE}"
            )
        if found > ROUNDING:
            raise UserError(
                f"the Hessian of this {type(self._net).__name__} is lost in the rounding of float32: u.Hv and v.Hu differ by "
                f"{found:.1g} of ||Hv||, but agree in float64. Set double, or let the net return logits instead of "
                f"(log-)probabilities. Otherwise {ADVICE}"
            )

    def _symmetric_in_float64(self) -> bool:
        """Whether a few samples' products are symmetric on a float64 copy: rounding vanishes there, a wrong derivative stays.

        False as well for a net or a loss that cannot be computed in float64: nothing vouches for it then.
        """
        if self.like.dtype == torch.float64:
            return False
        device = with_float64(self.like.device)
        few = tuple(part.to(device) for part in self._few())
        try:
            Hessian(own_copy(self._net).to(device), [few], self._loss, [*self.parameters], double=True)
        except Exception as error:
            if is_of_device(error):
                raise
            return False
        return True

    def _asymmetry(self, times: Callable[[list[Tensor]], list[Tensor]]) -> float:
        """|u.Hv - v.Hu| relative to ||Hu|| + ||Hv||, the largest of three pairs of Gaussian vectors; NaN counts as 0."""
        generator = torch.Generator().manual_seed(0)
        drawn = (torch.randn(self.size, generator=generator, dtype=torch.float64, device="cpu") for _ in range(3))
        vectors = [vector.to(self.like.dtype) for vector in drawn]  # on the CPU: MPS has no float64
        products = [_flat(times(self._parts(vector.to(self.like.device)))).cpu() for vector in vectors]
        found = 0.0
        for (u, hu), (v, hv) in itertools.combinations(zip(vectors, products), 2):
            size = math.sqrt(_dot(hu, hu)) + math.sqrt(_dot(hv, hv))
            found = max(found, abs(_dot(u, hv) - _dot(v, hu)) / size if size else 0.0)
        return found

    def _check_loss(self) -> None:
        try:
            pieces = [(inputs, *self._for_loss(labels)) for inputs, labels in self._chunks]
            differing = no_mean(lambda inputs: self._for_loss(self._net(inputs))[0], pieces, self._loss)
        except Exception as error:
            if not ran_out_of_memory(error) or any(len(labels) > 1 for _, labels in self._chunks):
                raise
            return  # there is no room for two samples
        if differing and is_random(self._net, pieces[0][0][:2]):
            raise UserError(f"a Hessian needs {SAME_EACH_TIME} Otherwise {ADVICE}")
        if differing:
            raise UserError(NO_MEAN.format("a Hessian", *differing, ADVICE))

    def _check_weights(self, net: nn.Module) -> None:
        """Check that the loss is one of the copy's outputs alone, and not of the weights of the net itself."""
        inputs, labels = self._few()
        with torch.enable_grad():
            loss = self._loss(*self._for_loss(self._net(inputs), labels))
        weights = [*trained_weights(net).values()]
        found = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else ()
        # That of a penalty with a factor of 0 is 0.
        if any(gradient is not None and bool(gradient.any()) for gradient in found):
            raise LossOfOwnWeights(
                "a Hessian in float64 is that of a copy of the net, but the loss uses weights of the net itself, as a penalty or "
                "a physics-informed loss does: set double to false, or let the loss be a function of outputs and labels."
            )

    def _backward(self, gradient: tuple[Tensor, ...], parts: list[Tensor], batched: bool, keep: bool) -> list[Tensor]:
        curved = [(g, part) for g, part in zip(gradient, parts) if g.requires_grad]  # others do not depend on w
        if not curved:
            return [torch.zeros_like(part) for part in parts]
        outputs, vectors = zip(*curved)
        options = {"retain_graph": keep, "allow_unused": True, "is_grads_batched": batched}
        with _twice(self._net):
            products = torch.autograd.grad(outputs, self._weights, vectors, **options)
        return [torch.zeros_like(part) if p is None else p for p, part in zip(products, parts)]

    def _bytes_per_number(self) -> float:
        """Bytes that a graph holds for each number of its inputs, from the graph of one sample."""
        inputs, labels = self._chunks[0]
        storages = {}

        def count(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor.detach()  # a saved output with its history would keep the graph, which holds it, for ever

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            self._gradient(inputs[:1], labels[:1])
        for weight in self._net.parameters():
            storages.pop(weight.untyped_storage().data_ptr(), None)
        return sum(storages.values()) / max(1, inputs[:1].numel())

    def _how_many_fit(self, memory: int, per_number: float) -> int:
        """How many chunks' graphs can be kept, each with its gradient."""
        gradient = self.size * self.like.element_size()
        sizes = itertools.accumulate(per_number * inputs.numel() + gradient for inputs, _ in self._chunks)
        return sum(size <= memory for size in sizes)


class Restricted:
    """P H P on a coordinate subspace: the diagonal block of the entries where ``mask`` is true."""

    def __init__(self, full: Symmetric, mask: Tensor) -> None:
        self._full = full
        self._where = mask.flatten().nonzero()[:, 0]
        if not len(self._where):
            raise UserError("a subspace needs at least one coordinate, got none.")

    @property
    def like(self) -> Tensor:
        return self._full.like

    @property
    def size(self) -> int:
        return len(self._where)

    def __matmul__(self, vector: Tensor) -> Tensor:
        whole = vector.new_zeros(self._full.size)
        whole[self._where] = vector
        return (self._full @ whole)[self._where]


def dense(hessian: Hessian) -> Tensor:
    """The Hessian itself, (size, size), symmetric to the last bit. It takes ``size`` products: for nets of a few thousand
    parameters.

    Rows and columns are averaged. They differ by rounding only: a `Hessian` that is not symmetric raises an error when created.
    """
    identity = torch.eye(hessian.size, dtype=hessian.like.dtype, device=hessian.like.device)
    rows = torch.cat([hessian.rows(part) for part in identity.split(COLUMNS)])
    return (rows + rows.T) / 2


def check_samples_apart(net: nn.Module, measure: str) -> None:
    """Raise an error if a sample's outputs depend on the others of its batch, which a measure may split.

    Raises:
        UserError: for a net in training mode, or a BatchNorm without running statistics.
    """
    check_evaluating(net, measure)
    if any(norm.running_mean is None for norm in net.modules() if isinstance(norm, _BatchNorm)):
        raise UserError(
            f"{measure} needs outputs that do not depend on the other samples of the batch, but a BatchNorm of this net has no "
            "running statistics: create it with track_running_stats=True."
        )


def chosen(net: nn.Module, names: Sequence[str] | None = None) -> dict[str, nn.Parameter]:
    """The parameters to differentiate with respect to, by name; None for all trainable ones."""
    trainable = trained_weights(net)
    if wrong := [name for name in names or () if name not in trainable]:
        raise UserError(
            f"'{wrong[0]}' is not a trainable parameter of this {type(net).__name__}: see net.named_parameters()."
        )
    chosen = trainable if names is None else {name: trainable[name] for name in names}
    if not chosen:
        raise UserError(f"this {type(net).__name__} has no trainable parameters, and so no Hessian.")
    for name, weight in chosen.items():
        if weight.is_complex():
            raise UserError(f"a Hessian needs real parameters, but {name} is {weight.dtype}: {ADVICE}")
        if weight.dtype not in (torch.float32, torch.float64):
            raise UserError(
                f"a Hessian is computed in float32 or float64, but {name} is {weight.dtype}: rounding to 3 digits would decide "
                "the sign of most eigenvalues. Train with bf16-mixed, which keeps float32 weights, or set double. Otherwise "
                f"{ADVICE}"
            )
    return chosen


def cut(batches: Batches, loss: Loss, dtype: torch.dtype, room: int, per_number: float = 1) -> list[tuple[Any, Tensor]]:
    """The samples in pieces that fit into ``room``: numbers of the inputs, or bytes if ``per_number`` is bytes for each of these.

    Pieces in which no label counts are left out, since their mean loss may be 0 / 0.
    """
    pieces: list[tuple[Any, Tensor]] = []
    for inputs, labels in batches:
        inputs, labels = _in_dtype(dtype, inputs, labels)
        size = max(1, int(room // max(1, per_number * inputs[:1].numel())))
        pieces += zip(inputs.split(size), labels.split(size))
    return [(inputs, labels) for inputs, labels in pieces if counted(labels, loss)]


def _in_dtype(dtype: torch.dtype, *tensors: Any) -> list[Any]:
    """Those that are no integers in this precision. All: torch 2.11 has no gradient of float64 outputs and float32 targets."""
    return [tensor.to(dtype=dtype) if tensor.is_floating_point() else tensor for tensor in tensors]


def _dot(one: Tensor, other: Tensor) -> float:
    """In float64, in pieces: vectors of a large net are not copied whole."""
    return sum(float(a.double() @ b.double()) for a, b in zip(one.split(2**22), other.split(2**22)))


@contextlib.contextmanager
def _twice(net: nn.Module) -> Iterator[None]:
    """Within it, nets without second derivatives are refused, and GPUs do not round the factors of convolutions to 10 bits."""
    try:
        with unrounded():
            yield
    except RuntimeError as error:  # anything else, as out of memory, stays what it is
        text = str(error)
        if not any(sign in text for sign in UNDIFFERENTIABLE):
            raise
        raise UserError(f"{type(net).__name__} {NOT_TWICE} ({text.splitlines()[0].rstrip('. ')}): {ADVICE}") from error


def _flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _graph(tensors: Iterable[Tensor]) -> set:
    """All nodes that lead to these tensors."""
    found, new = set(), [tensor.grad_fn for tensor in tensors if tensor.grad_fn]
    while new:
        node = new.pop()
        if node not in found:
            found.add(node)
            new += [earlier for earlier, _ in node.next_functions if earlier]
    return found
