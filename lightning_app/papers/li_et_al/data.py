"""Whitened MNIST as Li et al. use it: ten inputs, ten outputs, and all of it in two small matrices for linear nets."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_app.common.errors import UserError
from lightning_app.common.late import Tensor, torch
from lightning_app.papers.li_et_al.nets import WIDTH, Mid, Net
from lightning_app.papers.parts import Arrays, Source

if TYPE_CHECKING:
    from lightning_app.theory.li_et_al.descent import Problem
    from lightning_app.theory.li_et_al.linear import Moments

WHITENING = (
    "MNIST's training images, centred, on their ten leading principal components (eigenvalues descending, largest |loading| "
    "positive), divided by their standard deviations: Σ_XX = I. Labels one-hot. Layers 10 x 10 without biases."
)
PLACES = ("mnist", "MNIST/raw")  # where `WhitenedMNIST` finds it
SUBSET = 10_000  # training images where every step passes over the data; linear nets see them all at no cost


@dataclass(frozen=True, eq=False)
class Whitened:
    """Samples of the regression that the nets are trained on."""

    name: str  # "MNIST (60,000 images, sha256 0123456789abcdef)": 16 hex digits of their pixels and labels
    x: Tensor  # (m, 10) float64, mean 0 and covariance I
    y: Tensor  # (m, 10) float64, one-hot

    @cached_property
    def moments(self) -> "Moments":
        from lightning_app.theory.li_et_al.linear import Moments

        return Moments.of(self.x, self.y)

    def problem(self, shortcut: bool, mid: Mid) -> "Problem":
        """The loss of nets with an activation between a unit's matrices. With ReLU in float32, linear ones in closed form."""
        from lightning_app.theory.li_et_al.descent import LinearProblem, SampleProblem

        if mid == "identity":
            return LinearProblem(self.moments, shortcut)
        return SampleProblem(self.x.float(), self.y.float(), shortcut, mid)


@lru_cache(maxsize=4)
def whitened(source: Source, limit: int | None) -> Whitened:
    """Whitened MNIST, or, where it is missing and a stand-in is good enough, the embedded digits.

    Args:
        limit: only so many training images, stratified by class; None is all.

    Raises:
        UserError: if there is no MNIST below the source's root and nothing may stand in, saying how to get it.
    """
    from lightning_app.datamodules import WhitenedDigits, WhitenedMNIST
    from lightning_app.datamodules.trained_on import digest

    there = any((source.root / place).is_dir() for place in PLACES)
    if not there and not source.stand_in:
        raise UserError(
            f"expected MNIST below {source.root}, found neither {' nor '.join(PLACES)} there. Name its folder with --data-root, "
            f'or download it: python -c "from lightning_app.datamodules import WhitenedMNIST as M; '
            f"M('{source.root}').prepare_data()\"."
        )
    module = (WhitenedMNIST if there else WhitenedDigits)(str(source.root), WIDTH, train_limit=limit)
    x, labels = module.vectors()
    name = "MNIST" if there else "the embedded digits, which stand in for MNIST"
    images = f"{len(x):,} images, sha256 {digest(*module.of_split('train'))}"
    return Whitened(f"{name} ({images})", x, torch.nn.functional.one_hot(labels, WIDTH).double())


def on_whitened(compute: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """A computation's function, made of one that gets the data in place of their source and limit, and nets as such."""

    @wraps(compute)
    def computed(source: Source, limit: int | None, **asked: Any) -> Arrays:
        data = whitened(source, limit)
        if "net" in asked:  # its fields
            asked["net"] = Net(**asked["net"])
        return {**compute(data, **asked), "data": np.array(data.name)}

    return computed
