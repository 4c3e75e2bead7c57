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
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from benchmarks import harness
from benchmarks.harness import Batches, Ratio, Results, Row, interleave, run
from benchmarks.loops import BATCH, Epoch, bank, curvlinops_of, load_cifar10, public_script, through_lightning
from lightning_app.datamodules import CIFAR10
from lightning_app.measures import Hessian, spectrum
from lightning_app.networks import SimplifiedNet

WORKERS = (0, 1, 2)
EAGER = "ours, eager"
OURS = {  # compile, precision
    EAGER: (False, "32-true"),
    "ours, compiled": (True, "32-true"),
    "ours, compiled, bf16": (True, "bf16-mixed"),
}
US, CURVLINOPS, EIGENTHINGS = "ours", "curvlinops", "hessian-eigenthings"
INSTALL = "pip install --no-deps hessian-eigenthings==1.0.0a5"
TOP, STEPS, DENSITY_STEPS = 5, 30, 40
PRODUCT, DENSITY = "product", "density (ours: and the ends)"
GOALS = {(PRODUCT, CURVLINOPS): 0.7, (DENSITY, CURVLINOPS): 0.4}
Library = tuple[Callable[[Tensor], Tensor], Callable[[], Tensor], Callable[[], object]]
SIZES = {"images": 2560, "hessian_images": 32, "depth": 20}
parser = partial(harness.options_of, __doc__, rounds=5, **SIZES, compile=True, only=["epoch", "curvature"])


def measure(options: argparse.Namespace) -> Results:
    epochs = f"epochs of {options.images:,} images in batches of {BATCH}"
    net = f"residual simplified net of depth {options.depth}"
    found = Results(f"{net}; {epochs}, Hessians of {options.hessian_images}")
    if "epoch" in options.only:
        training_epoch(found, options)
    if "curvature" in options.only:
        curvature(found, options)
    return found


def training_epoch(found: Results, options: argparse.Namespace) -> None:
    scripts = {f"usual script, {workers} workers": harness.in_process(theirs, options, workers) for workers in WORKERS}
    chosen = {name: how for name, how in OURS.items() if options.compile or not how[0]}
    contenders = {name: harness.in_process(ours_of, options, *how) for name, how in chosen.items()}
    epochs = interleave(scripts | contenders, options.rounds)
    best = min(scripts, key=epochs.median)
    found.add("training epoch", epochs, best)
    found.rows += [epochs.row(name, best, None, f"training epoch, {name}") for name in contenders]


def theirs(options: argparse.Namespace, workers: int) -> Epoch:
    return public_script(options.depth, images(options), harness.DEVICE, workers=workers, evaluate=True)


def ours_of(options: argparse.Namespace, compile: bool, precision: str) -> Epoch:
    module = bank(depth=options.depth, compile=compile)
    return through_lightning(module, images(options), precision, harness.DEVICE, evaluate=True, clock=time.perf_counter)


def images(options: argparse.Namespace) -> CIFAR10:
    limits = {"train_limit": options.images, "test_limit": max(options.images // 5, 10), "evaluate_train": False}
    return CIFAR10(root=str(options.root), batch_size=BATCH, **limits)


def curvature(found: Results, options: argparse.Namespace) -> None:
    batches = load_cifar10(options.root, options.hessian_images, options.hessian_images)
    net = SimplifiedNet(options.depth).eval().to(harness.DEVICE, memory_format=torch.channels_last)
    libraries = {US: ours(net, batches), CURVLINOPS: with_curvlinops(net, batches)}
    if importlib.util.find_spec("hessian_eigenthings"):
        libraries[EIGENTHINGS] = with_eigenthings(net, batches)
    else:
        found.more["left out"] = missing = f"{EIGENTHINGS} is not installed and left out: {INSTALL}"
        print(f"\n{missing}")
    vector = torch.randn(sum(w.numel() for w in net.parameters())).to(harness.DEVICE)
    work: dict[str, dict[str, harness.Run]] = {PRODUCT: {}, f"top {TOP} eigenvalues": {}, DENSITY: {}}
    both = work[f"top {TOP} eigenvalues and density"] = {}
    for name, (product, top, density) in libraries.items():
        for what, one in zip(work, (partial(product, vector), top, density)):
            work[what][name] = one
        both[name] = (
            density if name == US else lambda top=top, density=density: (top(), density())
        )  # ours are of one run
    for what, contenders in work.items():
        timed = interleave({name: harness.processor_time(one) for name, one in contenders.items()}, options.rounds)
        found.add(f"Hessian: {what}", timed, US)
        others = (name for name in contenders if name != US)
        found.rows += [timed.row(US, of, GOALS.get((what, of)), f"Hessian: {what}, ours") for of in others]
    for name, (product, top, _) in libraries.items():  # do they agree?
        if name == US:
            Hv, largest = product(vector), float(top()[0])
            continue
        gaps = float((Hv - (their := product(vector))).norm() / their.norm()), abs(largest / float(top()[0]) - 1)
        of = "Hessian: product, relative difference", "Hessian: largest eigenvalue, relative difference"
        found.rows += [Row(what, name, Ratio.of(gap), goal) for what, gap, goal in zip(of, gaps, (1e-5, 1e-3))]


def ours(net: nn.Module, batches: Batches) -> Library:
    """H v of an operator that is built; the largest eigenvalues, descending; the density. Both build an operator."""
    return (
        Hessian(net, batches).__matmul__,
        lambda: spectrum(Hessian(net, batches), k=TOP, steps=STEPS)[0].top,
        lambda: spectrum(Hessian(net, batches), k=TOP, steps=DENSITY_STEPS),
    )


def with_curvlinops(net: nn.Module, batches: Batches) -> Library:
    """Its manual takes eigenvalues from scipy, and its own Lanczos for the density."""
    import curvlinops

    operator = partial(curvlinops_of, net, batches)

    def top() -> Tensor:
        values = eigsh(operator().to_scipy(), k=TOP, which="LA", tol=1e-3, return_eigenvectors=False)
        return torch.from_numpy(values.copy()).sort(descending=True).values

    return operator().__matmul__, top, lambda: curvlinops.lanczos_approximate_spectrum(operator(), DENSITY_STEPS)


def with_eigenthings(net: nn.Module, batches: Batches) -> Library:
    import hessian_eigenthings as theirs

    def operator() -> Any:
        return theirs.HessianOperator(net, batches, theirs.supervised_loss(F.cross_entropy))

    return (
        operator().matvec,
        lambda: theirs.lanczos(operator(), k=TOP, max_iter=STEPS, which="LA", seed=0).eigenvalues,
        lambda: theirs.spectral_density(operator(), num_runs=1, lanczos_steps=DENSITY_STEPS, seed=0),
    )


if __name__ == "__main__":
    run(measure, parser())
