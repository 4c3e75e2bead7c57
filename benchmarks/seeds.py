"""Many nets at once: a training epoch of a bank by every back end, against one net and against a net at a time.

    python -m benchmarks.seeds --root data [--nets 1 13 26] [--images 640] [--rounds 5] [--json FILE]
    python -m benchmarks.seeds --root data --device cuda --nets 1 13 26 --images 50000 --precision fp32 tf32 bf16

The references are what a user would write. "one net, eager" is a loop over resident batches. "one net, usual script" is
torchvision's pipeline in a DataLoader with 4 workers and two ``.item()`` a step. "stacked" is the method that lost on a
CPU and is not in the application: all nets' weights in one tensor, torch.func.vmap (grouped convolutions).

Goals on a GPU: 13 nets at most the time of one eager net (stretch: half), one net in a graph at most 0.2 of it, 26 nets
at least 20 times faster than 26 runs of the usual script. On a CPU: 13 nets at most 0.80 of 13 eager runs.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.timing import interleave, machine, save
from benchmarks.training import quiet, through_lightning
from lightning_app.datamodules import CIFAR10
from lightning_app.modules import Arm, ImageClassifier
from lightning_app.networks import SimplifiedNet

RATE, MOMENTUM, DECAY, BATCH = 0.01, 0.9, 1e-4, 128
PRECISIONS = {"fp32": ("32-true", False), "tf32": ("32-true", True), "bf16": ("bf16-mixed", True)}  # Lightning's, tf32
Epoch = Callable[[], float]


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def bank(nets: int, depth: int, backend: str, compile: bool, channels_last: bool) -> ImageClassifier:
    """Plain and residual nets in turn when there is an even number of them, else residual ones."""
    kinds = {"plain": False, "residual": True} if nets % 2 == 0 else {"residual": True}
    arms = {name: Arm(net=lambda kind=kind: SimplifiedNet(depth, residual=kind)) for name, kind in kinds.items()}
    options = {"seeds": nets // len(kinds), "backend": backend, "compile": compile, "channels_last": channels_last}
    return ImageClassifier(sgd, arms=arms, weight_decay=DECAY, **options)


class PilImages(Dataset):
    """CIFAR-10 as torchvision's class serves it: a PIL image at a time, through its transforms."""

    def __init__(self, data: CIFAR10) -> None:
        self.images = data.splits.train_images[: data.train_limit].numpy()  # (n, 32, 32, 3) uint8
        self.labels = data.splits.train_labels[: data.train_limit].tolist()
        normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        augment = (transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip())
        self.transform = transforms.Compose([*augment, transforms.ToTensor(), normalise])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(transforms.functional.to_pil_image(self.images[index])), self.labels[index]


def usual_script(depth: int, data: CIFAR10, device: str, bf16: bool) -> Epoch:
    """One net as most public scripts train it."""
    images = PilImages(data)
    loader = DataLoader(
        images, BATCH, shuffle=True, num_workers=4, pin_memory=device == "cuda", persistent_workers=True
    )
    net = SimplifiedNet(depth, residual=True).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)

    def epoch() -> float:
        started, seen = time.perf_counter(), 0.0
        for batch, labels in loader:
            batch, labels = batch.to(device), labels.to(device)
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                logits = net(batch)
                risk = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            risk.backward()
            optimizer.step()
            seen += risk.item() + (logits.argmax(1) == labels).float().mean().item()
        return time.perf_counter() - started

    return epoch


class Resident(CIFAR10):
    """The data module without a trainer, which would say on which device the images lie."""

    device = torch.device("cpu")

    @property
    def _device(self) -> torch.device:
        return self.device


def batches(data: Resident) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
    """Epochs of augmented batches on the device."""
    data.setup()
    loader = data.train_dataloader()
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield iter(loader)


def by_hand(depth: int, data: Resident, device: str, bf16: bool) -> Epoch:
    """One net in eager PyTorch, on resident data."""
    net = SimplifiedNet(depth, residual=True).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    epochs = batches(data)

    def epoch() -> float:
        started = time.perf_counter()
        for images, labels in next(epochs):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                risk = F.cross_entropy(net(images), labels)
            risk.backward()
            optimizer.step()
        synchronise(device)
        return time.perf_counter() - started

    return epoch


def stacked(nets: int, depth: int, data: Resident, device: str, bf16: bool, compile: bool) -> Epoch:
    """All nets' weights in one tensor each; every net has its own batches, here shifted ones of one stream."""
    made = [SimplifiedNet(depth, residual=True) for _ in range(nets)]
    base = SimplifiedNet(depth, residual=True).to("meta")
    weights = {name: nn.Parameter(w.detach().to(device)) for name, w in stack_module_state(made)[0].items()}
    optimizer = torch.optim.SGD(weights.values(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    epochs = batches(data)

    def risk(own: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(base, own, images), labels)

    step = vmap(grad_and_value(risk))
    step = torch.compile(step, dynamic=False) if compile else step

    def epoch() -> float:
        started = time.perf_counter()
        for images, labels in next(epochs):
            many = torch.stack([images.roll(net, 0) for net in range(nets)])
            own = torch.stack([labels.roll(net, 0) for net in range(nets)])
            with torch.autocast(device, torch.bfloat16, enabled=bf16):
                gradients, _ = step({name: w.detach() for name, w in weights.items()}, many, own)
            for name, w in weights.items():
                w.grad = gradients[name]
            optimizer.step()
        synchronise(device)
        return time.perf_counter() - started

    return epoch


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def contenders(options: argparse.Namespace, precision: str, data: Callable[..., Resident]) -> dict[str, Epoch]:
    lightning, tf32 = PRECISIONS[precision]
    bf16 = lightning == "bf16-mixed"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    device, depth = options.device, options.depth
    made: dict[str, Epoch] = {"one net, eager": by_hand(depth, data(), device, bf16)}
    if options.usual:
        made["one net, usual script"] = usual_script(depth, data(), device, bf16)
    backends = ("loop", "graph") if device == "cuda" else ("loop",)
    accelerator = "gpu" if device == "cuda" else "cpu"
    for nets in options.nets:
        for backend, compile in itertools.product(backends, (False, True)):
            name = f"{nets} nets, {backend}" + (", compiled" if compile else "")
            module = bank(nets, depth, backend, compile, options.channels_last)
            own = data(channels_last=options.channels_last)
            made[name] = through_lightning(module, own, lightning, accelerator)
        for compile in (False, True) if nets in options.stacked else ():
            name = f"{nets} nets, stacked" + (", compiled" if compile else "")
            made[name] = stacked(nets, depth, data(), device, bf16, compile)
    return made


def asked(options: argparse.Namespace) -> dict[str, str]:
    """What a result file says of the command: all but the places on this machine."""
    return {name: str(value) for name, value in vars(options).items() if name not in ("root", "json")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="folder with cifar10/train_images.npy")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--nets", type=int, nargs="+", default=[1, 13])
    parser.add_argument(
        "--stacked", type=int, nargs="*", default=[13], metavar="NETS", help="sizes to try stacked, too"
    )
    parser.add_argument("--usual", action="store_true", help="also the usual script with a DataLoader")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["fp32"])
    parser.add_argument("--channels_last", action="store_true")
    parser.add_argument("--images", type=int, default=640, help="training images in an epoch (50000: the whole set)")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all values here, a file for each precision")
    options = parser.parse_args()
    torch.set_num_threads(1)
    quiet()

    def data(**more: bool) -> Resident:
        made = Resident(root=options.root, train_limit=options.images, batch_size=BATCH, **more)
        made.device = torch.device(options.device)
        return made

    print(" | ".join(f"{key}: {value}" for key, value in machine().items()))
    for precision in options.precision:
        found = interleave(contenders(options, precision, data), options.rounds)
        print(f"\n{precision}: an epoch of {options.images} images, depth {options.depth}, batch {BATCH}", flush=True)
        print(found.table("one net, eager"), flush=True)
        if options.json:
            file = options.json.with_stem(f"{options.json.stem}-{precision}")
            save(file, found, "one net, eager", options=asked(options))


if __name__ == "__main__":
    main()
