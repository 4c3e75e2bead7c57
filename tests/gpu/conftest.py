"""Where steps go into graphs: a GPU, or on a CPU a stand-in for torch.cuda, or the same work without any capture.

And where two devices matter: a GPU, or one that is pretended.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch

from lightning_app.modules import ImageClassifier, backends, graphs
from tests.banks import classifier, digits, trainer
from tests.gpu.pretended import pretended_gpu, strategy
from tests.gpu.stand_in import stand_in

CUDA = torch.cuda.is_available()


@dataclass(frozen=True)
class Target:
    """Where a test runs, and the graphs captured so far."""

    device: str
    graphs: list[Any]

    def fit(
        self, epochs: int = 3, data: Any = None, ckpt_path: Any = None, options: Mapping[str, Any] = {}, **model: Any
    ) -> ImageClassifier:
        """A bank that was trained on the digits: 4 batches an epoch, the last of 4 samples."""
        module = model.pop("module", None) or classifier(**{"backend": "graph", "float32": "fp32"} | model)
        made = trainer(epochs, **{"accelerator": "gpu" if self.device == "cuda" else "cpu", "devices": 1} | options)
        made.fit(module, datamodule=data or digits(test_limit=60, eval_batch_size=50), ckpt_path=ckpt_path)
        return module

    def assert_same(self, one: ImageClassifier, other: ImageClassifier, tolerance: float = 1e-3) -> None:
        """Weights, buffers, momentum and metrics: on a CPU every bit, on a GPU relative to the norm of all together."""
        ours, theirs = state_of(one), state_of(other)
        if self.device == "cpu":
            assert all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs)
        ours, theirs = (torch.cat([t.double().flatten() for t in each]) for each in (ours, theirs))
        assert (ours - theirs).norm() <= tolerance * theirs.norm()
        for name, numbers in other.metrics().items():
            rel = 0 if self.device == "cpu" else 0.05
            assert one.metrics()[name] == pytest.approx(numbers, rel=rel, abs=rel, nan_ok=True)


def state_of(module: ImageClassifier) -> list[torch.Tensor]:
    states = module.trainer.optimizers[0].state.values()
    return [*module.state_dict().values(), *(t for state in states for t in state.values() if t is not None)]


@contextmanager
def uncaptured() -> Iterator[list[Any]]:
    """What a graph would hold is run as it is."""
    made: list[Any] = []

    def plain(
        work: Callable[[], None], pool: Any, put_back: Callable[[], None] = lambda: None, warm_ups: int = 0
    ) -> Any:
        made.append(mock.Mock(replay=work))
        return made[-1]

    names = {"graph_pool_handle": lambda: None, "synchronize": lambda: None, "get_sync_debug_mode": lambda: 0}
    names |= {"set_sync_debug_mode": lambda mode: None}
    patched = mock.patch.multiple(graphs, captured=plain, streams_for=lambda passes: [])
    there = mock.patch.object(backends, "captures", lambda device: True)
    with patched, there, mock.patch.multiple(torch.cuda, **names):
        yield made


@contextmanager
def counted() -> Iterator[list[Any]]:
    made: list[Any] = []
    captured = graphs.captured

    def count(*args: Any, **options: Any) -> Any:
        made.append(captured(*args, **options))
        return made[-1]

    with mock.patch.object(graphs, "captured", count):
        yield made


@pytest.fixture(params=["cuda", "stand-in", "uncaptured"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if (request.param == "cuda") != CUDA:
        pytest.skip("there is no GPU" if request.param == "cuda" else "there is a GPU")
    with {"cuda": counted, "stand-in": stand_in, "uncaptured": uncaptured}[request.param]() as graphs:
        yield Target("cuda" if CUDA else "cpu", graphs)


@pytest.fixture
def captures(target: Target, request: pytest.FixtureRequest) -> Target:
    """Where what cannot be captured is found out."""
    if "uncaptured" in request.node.name:
        pytest.skip("nothing is captured")
    return target


@pytest.fixture
def gpu() -> Iterator[dict[str, Any]]:
    """Within it "cuda" is a device, a pretended one where there is none; options of a trainer that trains there."""
    with nullcontext() if CUDA else pretended_gpu():
        yield {"accelerator": "gpu", "devices": 1} if CUDA else {"accelerator": "auto", "strategy": strategy()}
