"""The full Hessian spectrum of a trained net of a bank, with residual bounds, as JSON.

    python -m benchmarks.trained_spectrum CHECKPOINT --arm residual --root data --json out.json

For nets already trained; while they train, the callback `HessianSpectrum` does the same (`configs/curvature.yaml`).
"""

import argparse
import json
import time
from dataclasses import fields
from pathlib import Path

import torch

from benchmarks.hessian import trained
from benchmarks.timing import machine
from lightning_app.common.provenance import commit
from lightning_app.datamodules import CIFAR10
from lightning_app.measures import Hessian, Histogram, spectrum
from lightning_app.networks import SimplifiedNet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--arm", choices=("plain", "residual"), required=True)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--root", default="data")
    parser.add_argument("--samples", type=int, default=1000, help="of the training set's probe")
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--probes", type=int, default=2)
    parser.add_argument("--probe-steps", type=int, default=10)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = trained(SimplifiedNet(options.depth, options.arm == "residual"), options.arm, options.checkpoint).eval()
    data = CIFAR10(root=options.root, probe_size=options.samples)
    data.prepare_data()
    data.setup("fit")
    asked = {"k": options.k, "steps": options.steps, "probes": options.probes, "probe_steps": options.probe_steps}
    start, code = time.perf_counter(), commit()
    found, _ = spectrum(Hessian(net, data.probe_loader()), **asked)
    content = {
        "command": f"python -m benchmarks.trained_spectrum last.ckpt {_spelled(options)}",
        "commit": code,
        "epoch": torch.load(options.checkpoint, map_location="cpu", weights_only=True)["epoch"] + 1,
        "machine": machine(),
        "seconds": round(time.perf_counter() - start),
        "asked": asked,
        **{field.name: _plain(getattr(found, field.name)) for field in fields(found)},
    }
    options.json.write_text(json.dumps(content, indent=1) + "\n")
    print({name: value for name, value in content.items() if name not in ("nodes", "weights", "density")})


def _spelled(options: argparse.Namespace) -> str:
    """What decides the numbers, as options."""
    names = ("arm", "depth", "samples", "k", "steps", "probes", "probe_steps")
    return " ".join(
        f"{'-' if name == 'k' else '--'}{name.replace('_', '-')} {getattr(options, name)}" for name in names
    )


def _plain(value: object) -> object:
    """As JSON has it; of a histogram the bins that hold something."""
    if isinstance(value, Histogram):
        rows = zip(value.edges[:-1].tolist(), value.edges[1:].tolist(), value.counts.tolist())
        return [row for row in rows if row[2]]
    return value.tolist() if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    main()
