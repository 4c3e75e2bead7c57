"""The nets that Li et al. compare, how they start, and how they look in every figure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

from lightning_app.common.late import Tensor, torch
from lightning_app.plots.style import Style, styles

Mid = Literal["identity", "relu"]  # the activation between the matrices of a unit
WIDTH = 10  # "Ten greatest principal components are kept", and there are ten classes


@dataclass(frozen=True)
class Net:
    """Units of n matrices, with or without a shortcut around each, and their initialisation.

    Plain nets are written as units of two: with an activation between the two they have one after every odd layer.
    """

    name: str
    n: int
    shortcut: bool
    init: Literal["xavier", "orthogonal", "zero"]  # of `lightning_app.networks.shortcut.draw`
    scale: float = 1.0  # of init "zero": times Xavier's

    @property
    def parameters(self) -> dict[str, Any]:
        """As a piece's parameters have it."""
        return asdict(self)

    def start(self, depth: int, seeds: int) -> Tensor:
        """Initial weights of nets with ``depth`` matrices, (seeds, R, n, d, d) float64, seeds 0 to seeds - 1."""
        from lightning_app.networks.shortcut import draw

        shape = (depth // self.n, self.n, WIDTH, WIDTH)
        generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
        return torch.stack([draw(shape, self.init, self.scale, generator) for generator in generators])


XAVIER = Net("Xavier", 2, False, "xavier")
ORTHOGONAL = Net("orthogonal", 2, False, "orthogonal")
SHORTCUT_1, SHORTCUT_2, SHORTCUT_3, SHORTCUT_4 = (Net(f"{n}-shortcut", n, True, "zero", 0.01) for n in (1, 2, 3, 4))
NETS = (SHORTCUT_2, XAVIER, ORTHOGONAL, SHORTCUT_1, SHORTCUT_3, SHORTCUT_4)  # the paper's own: red and solid
KINDS = ("residual", "plain", "plain", "residual", "residual", "other")


def style(name: str) -> Style:
    """A net's colour, dash and marker."""
    return dict(zip((net.name for net in NETS), styles(KINDS)))[name]


def draw_curve(axes: Axes, name: str, x: Sequence[int] | np.ndarray, values: np.ndarray, label: str = "") -> None:
    """Mean over seeds, and their range as a band. values: (seeds, points); what is not finite leaves a gap."""
    look = style(name)
    values = np.where(np.isfinite(values), values, np.nan)
    shape: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "marker": look.marker, "markersize": 4}
    axes.plot(x, values.mean(axis=0), **shape, label=label or name)
    if len(values) > 1:
        axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=look.colour, alpha=0.18, linewidth=0)
