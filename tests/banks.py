"""Small banks on the embedded digits, and whether two are equal. Needs neither jsonargparse nor wandb, as tests/gpu do not."""

from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from lightning_app.datamodules import Digits
from lightning_app.modules import Arm, ImageClassifier
from lightning_app.networks import SimplifiedNet


def arm(residual: bool, depth: int = 5, **more) -> Arm:
    return Arm(net=lambda: SimplifiedNet(depth, residual=residual, width=4, **more))


def sgd(parameters, lr: float = 0.05):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def classifier(arms: dict[str, Arm] | None = None, **more) -> ImageClassifier:
    if arms is None and "net" not in more:
        arms = {"plain": arm(False), "residual": arm(True)}
    return ImageClassifier(**({"optimizer": sgd, "arms": arms} | more))


def digits(**more) -> Digits:
    return Digits(**({"batch_size": 32, "train_limit": 100, "probe_size": 20} | more))


def trainer(epochs: int = 2, **more) -> pl.Trainer:
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet = {"max_epochs": epochs, "accelerator": "cpu", "num_sanity_val_steps": 0} | dict.fromkeys(off, False)
    return pl.Trainer(**(quiet | more))


def fit(module: ImageClassifier, epochs: int = 2, data=None, **more) -> ImageClassifier:
    trainer(epochs, **more).fit(module, datamodule=data or digits())
    return module


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def identical(one: Any, other: Any) -> bool:
    """Equal down to the dtype and the bits of every tensor and array in nested dicts and lists."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(identical(one[key], other[key]) for key in one)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, torch.Tensor | np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return one == other
