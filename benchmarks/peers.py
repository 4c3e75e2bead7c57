"""What users run today, side by side with this application in one run: the training script, and libraries for Hessians.

    python -m benchmarks.peers --root data [--images 2560] [--rounds 5] [--only epoch curvature]

**epoch**: a whole training epoch with an evaluation of a fifth as many test images at its end. The script is what most public
repositories have, written here as a neutral baseline: a PIL image at a time through torchvision's transforms, a DataLoader
with 0, 1 or 2 workers, eager float32, two ``.item()`` a step. Ours goes through Lightning, with its metrics on, eager,
compiled, and in bfloat16 besides. Wall time, each loop in a process of its own: workers are processes, too.

**curvature**: a product with the Hessian, the five largest eigenvalues and the density, by this project, by curvlinops and by
hessian-eigenthings, in processor time. Here a spectrum is both at once, from the same products; the others make a run for
each, and what building an operator costs is in all of them. Do they agree? The largest eigenvalue and a product must.
hessian-eigenthings is no requirement: where it is not installed, it is left out, and a line says so.

Peers of the data loader, v2 of torchvision's transforms among them, are in `benchmarks.data`.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from benchmarks import harness
from benchmarks.harness import Ratio, Results, Row, interleave, run
from benchmarks.loops import BATCH, Epoch, bank, public_script, through_lightning
from lightning_app.datamodules import CIFAR10
from lightning_app.measures import Hessian, spectrum
from lightning_app.networks import SimplifiedNet

WORKERS = (0, 1, 2)
EAGER, COMPILED, HALF = "ours, eager", "ours, compiled", "ours, compiled, bf16"
OURS = {EAGER: (False, "32-true"), COMPILED: (True, "32-true"), HALF: (True, "bf16-mixed")}  # compile, precision

US, CURVLINOPS, EIGENTHINGS = "ours", "curvlinops", "hessian-eigenthings"
INSTALL = "pip install --no-deps hessian-eigenthings==1.0.0a5"
TOP, STEPS, DENSITY_STEPS = 5, 30, 40
PRODUCT, DENSITY = "product", "density (ours: and the ends)"
GOALS = {(PRODUCT, CURVLINOPS): 0.7, (DENSITY, CURVLINOPS): 0.4}


def parser() -> argparse.ArgumentParser:
    parser = harness.options_of(__doc__, rounds=5, images=2560, hessian_images=32, depth=20, compile=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    return parser


def measure(options: argparse.Namespace) -> Results:
    found = Results(
        f"residual simplified net of depth {options.depth}; epochs of {options.images:,} images in batches of {BATCH}, "
        f"Hessians of {options.hessian_images}"
    )
    for part in options.only:
        PARTS[part](found, options)
    return found


def training_epoch(found: Results, options: argparse.Namespace) -> None:
    scripts = {f"usual script, {workers} workers": harness.in_process(theirs, options, workers) for workers in WORKERS}
    chosen = {name: how for name, how in OURS.items() if options.compile or not how[0]}
    contenders = {name: harness.in_process(ours_of, options, *how) for name, how in chosen.items()}
    epochs = interleave(scripts | contenders, options.rounds)
    best = min(scripts, key=epochs.median)
    found.add("training epoch", epochs, best)
    found.rows += [Row(f"training epoch, {name}", best, epochs.ratio(name, best)) for name in contenders]


def theirs(options: argparse.Namespace, workers: int) -> Epoch:
    return public_script(options.depth, images(options), harness.DEVICE, workers=workers, evaluate=True)


def ours_of(options: argparse.Namespace, compile: bool, precision: str) -> Epoch:
    module = bank(depth=options.depth, compile=compile)
    return through_lightning(module, images(options), precision, harness.DEVICE, evaluate=True, clock=time.perf_counter)


def images(options: argparse.Namespace) -> CIFAR10:
    limits = {"train_limit": options.images, "test_limit": max(options.images // 5, 10), "evaluate_train": False}
    return CIFAR10(root=str(options.root), batch_size=BATCH, **limits)


@dataclass(frozen=True)
class Library:
    """What it takes to get the same numbers from it."""

    product: Callable[[Tensor], Tensor]  # H v, of an operator that is built
    top: Callable[[], Tensor]  # the largest eigenvalues, descending, operator included
    density: Callable[[], object]  # likewise


def curvature(found: Results, options: argparse.Namespace) -> None:
    batches = harness.load_cifar10(options.root, options.hessian_images, options.hessian_images)
    net = SimplifiedNet(options.depth).eval()
    net.to(harness.DEVICE, memory_format=torch.channels_last)
    libraries = {US: ours(net, batches), CURVLINOPS: with_curvlinops(net, batches)}
    if importlib.util.find_spec("hessian_eigenthings"):
        libraries[EIGENTHINGS] = with_eigenthings(net, batches)
    else:
        found.more["left out"] = missing = f"{EIGENTHINGS} is not installed and left out: {INSTALL}"
        print(f"\n{missing}")
    vector = torch.randn(sum(w.numel() for w in net.parameters())).to(harness.DEVICE)
    work = {
        PRODUCT: {name: lambda its=its: its.product(vector) for name, its in libraries.items()},
        f"top {TOP} eigenvalues": {name: its.top for name, its in libraries.items()},
        DENSITY: {name: its.density for name, its in libraries.items()},
        f"top {TOP} eigenvalues and density": {  # ours are of one run
            name: its.density if name == US else lambda its=its: (its.top(), its.density())
            for name, its in libraries.items()
        },
    }
    for what, contenders in work.items():
        timed = interleave({name: harness.processor_time(one) for name, one in contenders.items()}, options.rounds)
        found.add(f"Hessian: {what}", timed, US)
        found.rows += [
            Row(f"Hessian: {what}, ours", name, timed.ratio(US, name), GOALS.get((what, name)))
            for name in timed.values
            if name != US
        ]
    found.rows += agreement(libraries, vector)


def ours(net: nn.Module, batches: harness.Batches) -> Library:
    return Library(
        product=Hessian(net, batches).__matmul__,
        top=lambda: spectrum(Hessian(net, batches), k=TOP, steps=STEPS)[0].top,
        density=lambda: spectrum(Hessian(net, batches), k=TOP, steps=DENSITY_STEPS),
    )


def with_curvlinops(net: nn.Module, batches: harness.Batches) -> Library:
    """Its manual takes eigenvalues from scipy, and its own Lanczos for the density."""
    import curvlinops  # here: a machine that only trains has none

    def operator() -> "curvlinops.HessianLinearOperator":
        weights = list(net.parameters())
        return curvlinops.HessianLinearOperator(net, nn.CrossEntropyLoss(), weights, batches, check_deterministic=False)

    def top() -> Tensor:
        values = eigsh(operator().to_scipy(), k=TOP, which="LA", tol=1e-3, return_eigenvectors=False)
        return torch.from_numpy(values.copy()).sort(descending=True).values

    return Library(
        operator().__matmul__, top, lambda: curvlinops.lanczos_approximate_spectrum(operator(), DENSITY_STEPS)
    )


def with_eigenthings(net: nn.Module, batches: harness.Batches) -> Library:
    import hessian_eigenthings as theirs

    def operator() -> "theirs.HessianOperator":
        return theirs.HessianOperator(net, batches, theirs.supervised_loss(F.cross_entropy))

    return Library(
        operator().matvec,
        lambda: theirs.lanczos(operator(), k=TOP, max_iter=STEPS, which="LA", seed=0).eigenvalues,
        lambda: theirs.spectral_density(operator(), num_runs=1, lanczos_steps=DENSITY_STEPS, seed=0),
    )


def agreement(libraries: dict[str, Library], vector: Tensor) -> list[Row]:
    """Relative differences of products and of the largest eigenvalue."""
    products = {name: its.product(vector) for name, its in libraries.items()}
    largest = {name: float(its.top()[0]) for name, its in libraries.items()}
    rows = []
    for name in (name for name in libraries if name != US):
        gap = float((products[US] - products[name]).norm() / products[name].norm())
        rows.append(Row("Hessian: product, relative difference", name, Ratio.of(gap), goal=1e-5))
        gap = abs(largest[US] / largest[name] - 1)
        rows.append(Row("Hessian: largest eigenvalue, relative difference", name, Ratio.of(gap), goal=1e-3))
    return rows


PARTS: dict[str, Callable[[Results, argparse.Namespace], None]] = {"epoch": training_epoch, "curvature": curvature}

if __name__ == "__main__":
    run(measure, parser())
