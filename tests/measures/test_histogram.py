"""Against numpy, whose edges rule this one follows, and the law that nothing is lost."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_app.measures.core.histogram import histogram

EDGES = st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True).map(sorted)


# Integers and halves hit edges often, which is where conventions differ.
@given(st.lists(st.integers(-120, 120).map(lambda i: i / 2), max_size=60), EDGES)
def test_agrees_with_numpy_and_conserves_the_total(values, edges):
    found = histogram(torch.tensor(values, dtype=torch.float64), torch.tensor(edges, dtype=torch.float64))
    expected, _ = np.histogram(np.array(values), np.array(edges, dtype=float))
    assert found.counts.tolist() == expected.tolist()
    assert found.counts.dtype == torch.int64
    assert found.below == sum(value < edges[0] for value in values)
    assert int(found.counts.sum()) + found.below + found.above == len(values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_dtype_is_compared_exactly(dtype):
    found = histogram(torch.tensor([[0.25, -1.0], [1.0, 0.5]], dtype=dtype), torch.tensor([0.25, 0.5, 1.0]))
    assert found.counts.tolist() == [1, 2]
    assert (found.below, found.above) == (1, 0)


def test_a_value_below_an_edge_by_less_than_float32_can_tell_is_below_it():
    edges = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    below = torch.nextafter(edges[1], edges[0])
    assert histogram(below.view(1), edges).counts.tolist() == [1, 0]


def test_infinities_are_outside_and_nan_is_nowhere():
    found = histogram(torch.tensor([float("nan"), float("inf"), -float("inf"), 0.5]), torch.tensor([0.0, 1.0]))
    assert (found.counts.tolist(), found.below, found.above) == ([1], 1, 1)


@pytest.mark.parametrize("edges", [[0.0], [1.0, 0.0], [0.0, 0.0, 1.0], [[0.0, 1.0]]])
def test_edges_must_increase(edges):
    with pytest.raises(ValueError, match="strictly increasing"):
        histogram(torch.zeros(3), torch.tensor(edges))
