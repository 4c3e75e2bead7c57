"""Risk and error: one torchmetrics metric with exact sums, so that batches weigh by their size on any number of ranks."""

import torch
from torch import Tensor
from torchmetrics import Metric

__all__ = ["RiskAndError"]


class RiskAndError(Metric):
    """Mean loss (risk; cross-entropy in nats) a sample, and share of wrong top-1 predictions (error, in [0, 1]).

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
        self.add_state("risk_sum", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("wrong", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, risk: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: its mean risk (), logits (B, classes) and labels (B,). An empty batch adds nothing."""
        if len(labels):
            self.risk_sum += risk.detach().double() * len(labels)
            self.wrong += (logits.detach().argmax(1) != labels).sum()
            self.count += len(labels)

    def compute(self) -> dict[str, float]:
        """``{"risk", "error"}``; nan before the first sample."""
        sums = torch.stack([self.risk_sum, self.wrong.double(), self.count.double()]).tolist()
        return (
            {"risk": sums[0] / sums[2], "error": sums[1] / sums[2]}
            if sums[2]
            else dict.fromkeys(("risk", "error"), float("nan"))
        )

    def sums(self) -> dict[str, Tensor]:
        """The raw state, for a checkpoint taken in the middle of an epoch."""
        return {name: getattr(self, name).detach().cpu().clone() for name in self._defaults}

    def restore(self, sums: dict[str, Tensor], ours: bool = True) -> None:
        """Put back what `sums` returned; on ranks that leave it to another one, zeros that count as updated.

        All ranks must agree on having been updated: `compute` sums over them, and one that does not call it is waited for.
        """
        for name, value in sums.items():
            setattr(self, name, (value if ours else torch.zeros_like(value)).to(self.device))
        self._update_count = int(bool(sums["count"]))
