"""Histograms that can be compared over epochs, nets and devices: edges are fixed, and values outside are counted.

The papers draw distributions once before and once after training. Histograms whose bins depend on the data, as loggers choose
them, cannot be overlaid, so each measure has fixed edges. Values outside are counted, not dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts between fixed edges, all on the CPU. ``counts.sum() + below + above`` is the number of values that are not NaN."""

    counts: Tensor  # (bins,) int64
    edges: Tensor  # (bins + 1,) float64, increasing
    below: float  # number of values < edges[0]; in a density it need not be whole
    above: float  # number of values > edges[-1]; likewise

    def coarse(self, bins: int) -> "Histogram":
        """The same counts in at most ``bins`` bins, by joining neighbours: for trackers that draw small pictures.

        >>> h = Histogram(torch.tensor([1, 2, 3]), torch.tensor([0.0, 1.0, 2.0, 3.0]), below=0, above=4)
        >>> h.coarse(2).counts.tolist(), h.coarse(2).edges.tolist()
        ([3, 3], [0.0, 2.0, 3.0])
        """
        joined = -(-len(self.counts) // bins)
        counts = torch.stack([part.sum() for part in self.counts.split(joined)])
        edges = torch.cat([self.edges[:-1:joined], self.edges[-1:]])
        return Histogram(counts, edges, self.below, self.above)

    @classmethod
    def total(cls, parts: "Sequence[Histogram]", edges: Tensor) -> "Histogram":
        """The sum of histograms with these edges; without any histogram all counts are 0."""
        counts = sum((part.counts for part in parts), edges.new_zeros(len(edges) - 1, dtype=torch.int64))
        return cls(counts, edges, sum(part.below for part in parts), sum(part.above for part in parts))


def histogram(values: Tensor, edges: Tensor) -> Histogram:
    """Count values into the bins [edges[i], edges[i+1]); the last bin contains its right edge, as in numpy.

    Edges, (bins + 1,), are increasing. Infinities count as below or above; NaN is ignored. Cost: one binary search per value.

    >>> h = histogram(torch.tensor([-9.0, 0.0, 0.5, 1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 2.0]))
    >>> h.counts.tolist(), h.below, h.above
    ([2, 2], 1, 1)
    """
    if edges.ndim != 1 or len(edges) < 2 or not bool((edges.diff() > 0).all()):
        raise ValueError(f"a histogram needs at least two edges, strictly increasing, got {edges}.")
    # A search and a count, as `torch.histogram` does not exist on CUDA.
    edges = edges.double()
    values = values.detach().flatten().double()  # float64: a bfloat16 value is compared with the edge, not its rounding
    values = values[~values.isnan()]
    bins = len(edges) - 1
    place = torch.bucketize(values, edges.to(values.device), right=True)  # 0 below, 1..bins inside, bins + 1 the rest
    place = torch.where(values == edges[-1].to(values.device), bins, place)
    counts = torch.bincount(place, minlength=bins + 2).cpu()
    return Histogram(counts[1:-1], edges.cpu(), below=int(counts[0]), above=int(counts[-1]))
