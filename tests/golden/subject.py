"""The net and the pictures that the golden measures are of: torchvision's ResNet with weights that are nobody's.

All is drawn by NumPy's PCG64, uniformly (what a generator makes of its bits for other distributions may change between
versions), and rounded to float32, so that it is the same everywhere. Nothing in it is 0 or 1, and a tenth of the lambdas
is negative, as a net can have them after training.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock

from lightning_app.datamodules import ImageFolder
from lightning_app.runs import RunFolder
from tests.helpers import command

__all__ = ["CLASSES", "LABELS", "LAYERS", "golden_data", "golden_images", "golden_net", "measure_golden"]

CLASSES = 10
LABELS = (0, 3, 5)  # of the pictures; the net is right about one of them
NAMES = tuple(f"class{label}" for label in range(CLASSES))
SIZE = 40  # of the pictures: maps of 10, 5, 3 and 2, of odd sizes too; at 32 the last is 1, which has no variance of its own
READOUT = 0.05  # of that deviation for the last layer, so that no probability is nearly 0 or 1
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet

LAYERS = {  # name in the keys -> name in the net, in the order in which torchvision's file registers them
    f"layer{number:02d}": path
    for number, path in enumerate(
        (
            "conv1",
            *(
                f"layer{stage}.0.{part}"
                for stage in (1, 2, 3, 4)
                for part in ("conv1", "conv2", *(("downsample.0",) if stage > 1 else ()))
            ),
            "fc",
        ),
        start=1,
    )
}


def golden_net() -> nn.Module:
    """In float64 and evaluation mode."""
    net = resnet10()
    net.load_state_dict(golden_state())
    return net.double().eval()


def resnet10() -> nn.Module:
    """One block in each of resnet18's four stages: all of its parts, and a third of the time."""
    return ResNet(BasicBlock, [1, 1, 1, 1], CLASSES)


def golden_state() -> dict[str, Tensor]:
    """The state dict, float32."""
    source = np.random.Generator(np.random.PCG64(18))
    return {name: _drawn(name, like, source) for name, like in resnet10().state_dict().items()}


def _drawn(name: str, like: Tensor, source: np.random.Generator) -> Tensor:
    if not like.is_floating_point():
        return like
    if like.ndim > 1:
        size = (6 / like[0].numel()) ** 0.5 * (READOUT if name == "fc.weight" else 1)  # variance 2 / fan-in
        low, high = -size, size
    else:
        low, high = {"weight": (0.5, 1.5), "bias": (-0.3, 0.3), "running_mean": (-0.3, 0.3), "running_var": (0.5, 1.5)}[
            name.rpartition(".")[2]
        ]
    drawn = low + (high - low) * source.random(like.shape)
    if name.endswith("weight") and like.ndim == 1:
        drawn *= np.where(source.random(like.shape) < 0.1, -1, 1)
    return torch.from_numpy(drawn.astype(np.float32))


def golden_pictures() -> np.ndarray:
    """(3, 40, 40, 3) uint8: coarse patches under fine noise, so that they are not all alike to the net."""
    source = np.random.Generator(np.random.PCG64(64))
    coarse = source.random((len(LABELS), 4, 4, 3)).repeat(SIZE // 4, 1).repeat(SIZE // 4, 2)
    fine = source.random((len(LABELS), SIZE, SIZE, 3))
    return (256 * (0.7 * coarse + 0.3 * fine)).astype(np.uint8)


def golden_images() -> Tensor:
    """The pictures with ImageNet's mean and deviation taken off, (3, 3, 40, 40) float64."""
    pictures = torch.from_numpy(golden_pictures()).double() / 255
    return ((pictures - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)


def golden_data(folder: Path) -> ImageFolder:
    """The pictures in a new folder; the test set is the training set."""
    for split in ("train", "test"):
        for label, picture in zip(LABELS, golden_pictures()):
            (folder / split / NAMES[label]).mkdir(parents=True)
            Image.fromarray(picture).save(folder / split / NAMES[label] / "0.png")
    return ImageFolder(str(folder), image_size=SIZE, resize=SIZE, class_names=list(NAMES))


def measure_golden(folder: Path) -> RunFolder:
    """What ``python main.py measure`` says of it, with the configuration as it is, in float64."""
    torch.save(golden_state(), folder / "weights.pt")
    golden_data(folder / "pictures")
    said = command(
        *("measure", "--weights", "weights.pt", "--trainer.precision", "64-true", "--trainer.accelerator", "cpu"),
        *("--model.net", "torchvision.models.ResNet", "--model.net.init_args.num_classes", CLASSES),
        *("--model.net.init_args.block", "torchvision.models.resnet.BasicBlock"),
        *("--model.net.init_args.layers", "[1,1,1,1]"),
        *("--data", "ImageFolder", "--data.root", "pictures", "--data.image_size", SIZE, "--data.resize", SIZE),
        *("--data.class_names", f"[{','.join(NAMES)}]", "--out", "out"),
        cwd=folder,
    )
    assert said.returncode == 0, said.stderr
    return RunFolder(folder / "out")
