"""What is left for the host of a training step in a CUDA graph: Lightning's loop, callbacks, and looking after the replay.

    python -m benchmarks.host [--nets 1 13 26] [--depth 20] [--rounds 3]

Microseconds of processor time a step, of a fit on the digits whose replays do nothing: so it needs no GPU. A replay is only
launched. While a step takes the device longer than this, the host is ahead of it and costs nothing. "of it, weights" is the
part that looks whether all weights are where the graph knows them.
"""

import argparse
import time
from functools import partial
from unittest import mock

import torch

from benchmarks.harness import Results, interleave, options_of, run
from benchmarks.loops import EpochClock, bank, trainer
from lightning_app.datamodules import Digits
from lightning_app.modules import backends, graphs

parser = partial(options_of, __doc__, rounds=3, nets=[1, 13, 26], depth=20)
CUDA = {"graph_pool_handle": lambda: None, "synchronize": lambda: None}
REPLAYS = {"captured": lambda *_, **__: mock.Mock(replay=lambda: None), "streams_for": lambda passes: []}


def step_of(nets: int, depth: int) -> float:
    """Of an epoch after the first, in which both batches' graphs would be captured."""
    fit = trainer(max_epochs=2, limit_val_batches=0, callbacks=[clock := EpochClock(time.process_time)])
    with (
        mock.patch.multiple(torch.cuda, **CUDA),
        mock.patch.multiple(graphs, **REPLAYS, AGREEMENT=float("inf")),
        mock.patch.object(backends, "captures", lambda device: True),
    ):
        fit.fit(bank(nets, depth, backend="graph"), datamodule=Digits(batch_size=4))
    return 1e6 * clock.seconds / int(fit.num_training_batches)


def looking(nets: int, depth: int) -> float:
    weights = list(bank(nets, depth).parameters())
    started = time.process_time()
    for _ in range(1000):
        graphs.addresses_of(weights)
    return 1e3 * (time.process_time() - started)


def measure(options: argparse.Namespace) -> Results:
    found = Results(f"residual simplified nets of depth {options.depth}; processor time")
    made = {f"{nets} nets": partial(step_of, nets, options.depth) for nets in options.nets}
    made |= {f"{nets} nets, of it, weights": partial(looking, nets, options.depth) for nets in options.nets}
    found.add("steps", interleave(made, options.rounds, "us"), f"{options.nets[0]} nets")
    return found


if __name__ == "__main__":
    run(measure, parser())
