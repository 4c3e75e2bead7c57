"""The penalty lambda/2 ||w - centre||^2, kept out of the optimizer so that its centre can be chosen.

``torch.optim``'s weight_decay always pulls towards 0. For the plain twin p = T(r) of a residual net that is the wrong
penalty: the twins stay equivalent only when p decays towards rho, so that ||p - rho||^2 = ||r||^2 (Yu & Tomasi,
section 4.1). The gradient is added to the loss's gradient before the optimizer's step (coupled L2).
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.identity import id_entries
from lightning_app.modules.members import Centre

__all__ = ["Decays", "Penalty", "add_gradients"]

Decays = Literal["all", "weights", "none"]


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
        own = getattr(net, "id_weights", None)
        if centre == "identity" and own is None:
            raise UserError(f"decay_towards 'identity' needs a net with ID entries; {type(net).__name__} names none.")
        named = {n: w for n, w in net.named_parameters() if decays == "all" or (decays == "weights" and w.ndim >= 2)}
        self._weights = list(named.values())  # in a list: hidden from nn.Module's registration
        shifted = set(own()) if own and centre == "identity" else set()
        for index, (name, w) in enumerate(named.items()):
            rho = id_entries(w).to(w.dtype) if name in shifted else None
            self.register_buffer(f"centre_{index}", rho, persistent=False)

    @torch.no_grad()
    def displacements(self) -> list[tuple[nn.Parameter, Tensor]]:
        """(w, w - centre) of every decaying parameter."""
        pairs = zip(self._weights, self._buffers.values())  # the centres, in the order of the weights
        return [(w, w.detach() if centre is None else w.detach() - centre) for w, centre in pairs]

    @torch.no_grad()
    def half_norm(self) -> float:
        """1/2 ||w - centre||^2, summed in float64."""
        if not self._weights:
            return 0.0
        return 0.5 * float(torch.stack([d.double().square().sum() for _, d in self.displacements()]).sum())

    def value(self) -> float:
        """The penalty itself, in the units of the loss."""
        return self.strength * self.half_norm()


@torch.no_grad()
def add_gradients(penalties: Iterable[Penalty]) -> None:
    """Add lambda (w - centre) to the gradients of the loss: of a whole bank at once, as torch.optim steps."""
    by_strength: dict[float, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for penalty in penalties:
        if penalty.strength:
            by_strength[penalty.strength] += [(w.grad, d) for w, d in penalty.displacements() if w.grad is not None]
    for strength, pairs in by_strength.items():
        if pairs:
            torch._foreach_add_(*map(list, zip(*pairs)), alpha=strength)
