"""What is minimised and what is reported: the loss, the penalty on weights, and exact sums of risks and errors.

The penalty lambda/2 ||w - centre||^2 is kept out of the optimizer so that its centre can be chosen. ``torch.optim``'s
weight_decay always pulls towards 0. For the plain twin p = T(r) of a residual net that is the wrong penalty: the twins stay
equivalent only when p decays towards rho, so that ||p - rho||^2 = ||r||^2 (Yu & Tomasi, section 4.1). The gradient is added
to the loss's gradient before the optimizer's step (coupled L2).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import unwrapped
from lightning_app.identity import id_entries
from lightning_app.measures.core.losses import Loss, counts_of, cross_entropy, wrong
from lightning_app.modules.members import Centre

LossName = Literal["cross_entropy", "squared_error"]
Decays = Literal["all", "weights", "none"]


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """``1/(2B) sum ||f(x) - e_y||^2`` with the unit vector of the label as target (Li et al. 2016, appendix B). >= 0.

    Computed in float32 at least. Outputs beyond the classes have target 0.

    >>> squared_error(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1]))  # 0 and 9 + 1
    tensor(2.5000)

    Raises:
        UserError: for labels that are not one a sample.
    """
    if labels.ndim != 1:
        raise UserError(
            f"model.loss squared_error needs one label for each sample, got labels of shape {tuple(labels.shape)}: use "
            "cross_entropy, or a net that computes its loss itself."
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    return 0.5 * (logits - targets).square().sum(1).mean()


def loss_named(name: LossName) -> Loss:
    """The mean loss of that name, a function of logits and labels.

    Raises:
        UserError: if there is none.
    """
    losses: dict[LossName, Loss] = {"cross_entropy": cross_entropy, "squared_error": squared_error}
    if name not in losses:
        raise UserError(f"model.loss: expected one of {', '.join(losses)}, got {name!r}.")
    return losses[name]


class Penalty(nn.Module):
    """lambda/2 ||w - centre||^2 of one net.

    Args:
        net: the net; not registered, so the penalty owns no parameters.
        strength: lambda, times whatever scale the cost has.
        decays: which parameters w holds: "all" of them, "weights" (two or more dimensions: no biases, no norms) or "none".
        centre: "zero", or "identity" for rho.
    """

    def __init__(self, net: nn.Module, strength: float, decays: Decays = "all", centre: Centre = "zero") -> None:
        super().__init__()
        self.strength = strength
        net = unwrapped(net)
        own = getattr(net, "id_weights", None)
        if centre == "identity" and own is None:
            raise UserError(f"decay_towards 'identity' needs a net with ID entries; {type(net).__name__} names none.")
        shifted = set(own()) if own and centre == "identity" else set()
        # A shared weight has several names, and one in a part that torch.compile wraps another than the net says.
        every = {name.replace("_orig_mod.", ""): w for name, w in net.named_parameters(remove_duplicate=False)}
        if missing := sorted(shifted - every.keys()):
            raise UserError(
                f"decay_towards 'identity' needs the weights with ID entries as parameters, and '{missing[0]}' of "
                f"{type(net).__name__} is none: leave out what computes it from others (a parametrization), or decay to zero."
            )
        named = {n: w for n, w in net.named_parameters() if decays == "all" or (decays == "weights" and w.ndim >= 2)}
        self._weights = list(named.values())  # in a list: hidden from nn.Module's registration
        around = {id(every[name]) for name in shifted}
        for index, w in enumerate(self._weights):
            rho = id_entries(w).to(w.dtype) if id(w) in around else None
            self.register_buffer(f"centre_{index}", rho, persistent=False)

    @torch.no_grad()
    def displacements(self) -> list[tuple[nn.Parameter, Tensor]]:
        """(w, w - centre) of every decaying parameter."""
        pairs = zip(self._weights, self._buffers.values())  # the centres, in the order of the weights
        return [(w, w.detach() if centre is None else w.detach() - centre) for w, centre in pairs]

    @torch.no_grad()
    def half_norm(self) -> float:
        """1/2 ||w - centre||^2, summed in float64, with the size of complex weights."""
        if not self._weights:
            return 0.0
        sizes = (d.abs() if d.is_complex() else d for _, d in self.displacements())
        return 0.5 * float(torch.stack([size.double().square().sum() for size in sizes]).sum())

    def value(self) -> float:
        """The penalty itself, in the units of the loss."""
        return self.strength * self.half_norm()


@torch.no_grad()
def add_gradients(penalties: Iterable[Penalty]) -> None:
    """Add lambda (w - centre) to the gradients of the loss: of a whole bank at once, as torch.optim steps."""
    by_strength: dict[float, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for penalty in penalties:
        for w, displacement in penalty.displacements() if penalty.strength else ():
            if w.grad is not None:
                if w.grad.is_sparse:  # of an embedding, and the penalty is of all its rows
                    w.grad = w.grad.to_dense()
                by_strength[penalty.strength].append((w.grad, displacement))
    for strength, pairs in by_strength.items():
        torch._foreach_add_(*map(list, zip(*pairs)), alpha=strength)


class RiskAndError(Metric):
    """Mean loss (risk; cross-entropy in nats) and share of wrong predictions (error) of samples, or of tokens whose label counts.

    Computed from sums over all batches and ranks: every sample has the same weight.

    >>> metric = RiskAndError()
    >>> metric.update(torch.tensor(0.5), torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    >>> metric.compute()
    {'risk': 0.5, 'error': 0.5}
    """

    full_state_update = False
    higher_is_better = False
    risk_sum: Tensor  # () float64
    wrong: Tensor  # () int64
    count: Tensor  # () int64

    def __init__(self) -> None:
        super().__init__()
        for name, dtype in (("risk_sum", torch.float64), ("wrong", torch.int64), ("count", torch.int64)):
            self.add_state(name, torch.zeros((), dtype=dtype), dist_reduce_fx="sum")

    def update(self, risk: Tensor, logits: Tensor, labels: Tensor, loss: Loss = cross_entropy) -> None:
        """Add a batch: its mean risk (), logits (B, classes) and labels (B,), or (B, T, classes) and (B, T) of tokens.

        An empty batch adds nothing. The loss knows which labels count.
        """
        if not len(labels):
            return
        terms = counts_of(labels, loss)
        errors = wrong(logits.detach(), labels, loss)
        if errors is None:
            raise UserError(
                f"expected labels that number two classes or more, got labels {tuple(labels.shape)} ({labels.dtype}) for outputs "
                f"{tuple(logits.shape)}: no error can be counted. Train such a net in a LightningModule of your own, with the "
                "measures as callbacks."
            )
        self.risk_sum += torch.where(terms > 0, risk.detach().double() * terms, 0.0)  # the mean over none is NaN
        self.wrong += errors
        self.count += terms

    @override
    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> Any:
        """Only moves the sums: ``.to(torch.bfloat16)`` of the module that they belong to would round them, too."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), exclude_state)

    @override
    def reset(self) -> None:
        """Zero the sums where they are: a CUDA graph that adds to them knows their memory only."""
        sums = {name: getattr(self, name) for name in self._defaults}
        super().reset()
        for name, total in sums.items():
            if not total.is_inference():  # what a sum over ranks has left in evaluation
                setattr(self, name, total.zero_())

    def added_elsewhere(self) -> None:
        """Samples were added to the sums, and not by `update`."""
        # Past Module's __setattr__, which is slow: this happens to every net in every step.
        vars(self).update(_computed=None, _update_count=self._update_count + 1)

    def compute(self) -> dict[str, float]:
        """``{"risk", "error"}``; both are nan before the first sample, and if the outputs are NaN."""
        sums = torch.stack([self.risk_sum, self.wrong.double(), self.count.double()]).tolist()
        risk, error = (total / sums[2] if sums[2] else float("nan") for total in sums[:2])
        return {"risk": risk, "error": risk if math.isnan(risk) else error}

    def sums(self) -> dict[str, Tensor]:
        """The raw state, for a checkpoint taken in the middle of an epoch."""
        return {name: getattr(self, name).detach().cpu().clone() for name in self._defaults}

    def restore(self, sums: dict[str, Tensor], ours: bool = True) -> None:
        """Put back what `sums` returned, or (``ours`` False) zeros, on ranks where another one has the sums.

        Ranks must agree on whether they were updated: `compute` sums over them, and would wait for one that takes no part.
        """
        for name, value in sums.items():
            setattr(self, name, (value if ours else torch.zeros_like(value)).to(self.device))
        self._update_count = int(bool(sums["count"]))
