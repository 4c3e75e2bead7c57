"""Which measure runs on which architecture, or why not: a table in docs/measuring.md.

    python -m docs.architectures                 # writes it
    python -m docs.architectures --full [NAME]   # prints a line a measure for the nets as published, or those of that name

Written is what happens with small nets of the same classes, on four small pictures or sequences: a test makes it again.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import nn
from torchvision.models import efficientnet, mobilenetv3

from callbacks import (
    BnLambda,
    DistanceFromStart,
    DrivingForce,
    EffectiveDepth,
    HessianSpectrum,
    InterlayerCushion,
    LayerCushion,
    LossSurface,
    MeasureContext,
    NoiseStability,
    Signal,
    WeightMass,
)
from callbacks.interlayer_cushion import NO_BLOCKS
from callbacks.measure import Measure, StatefulMeasure
from lightning_app.common.errors import UserError, reason
from lightning_app.common.text import markdown_row
from lightning_app.modules.members import Arm, build_members

PAGE = Path(__file__).parent / "measuring.md"
HEAD = "| network | "
CLASSES, TOKENS, LENGTH = 4, 40, 6
TWINS = "TwinDivergence"

MEASURES: dict[str, Callable[[], Measure]] = {
    "Signal": Signal,
    "WeightMass": WeightMass,
    "DistanceFromStart": DistanceFromStart,
    "LayerCushion": LayerCushion,
    "NoiseStability": partial(NoiseStability, samples=2, strengths=[0.1], draws=1, tangents=2),
    "InterlayerCushion": partial(InterlayerCushion, samples=2, probes=1),
    "LossSurface": partial(LossSurface, samples=2, radii=[0.1], rays=1),
    "BnLambda": BnLambda,
    "HessianSpectrum": partial(HessianSpectrum, samples=2, steps=4, k=1),
    "DrivingForce": partial(DrivingForce, samples=2),
    "EffectiveDepth": partial(EffectiveDepth, samples=2, gradient_samples=1),
}


def small() -> dict[str, Callable[[], nn.Module]]:
    """Of the same classes, with few layers and channels."""
    models: Any = torchvision.models
    mobile = mobilenetv3._mobilenet_v3_conf("mobilenet_v3_small", width_mult=0.25)[0][:4]
    efficient = efficientnet._efficientnet_conf("efficientnet_b0", width_mult=0.25, depth_mult=0.3)[0][:3]
    convnext = [models.convnext.CNBlockConfig(8, 16, 1), models.convnext.CNBlockConfig(16, None, 1)]
    attention = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    texts = {"vocab_size": TOKENS, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    of_bert = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return {
        "torchvision resnet50": _two_groups,
        "torchvision densenet121": lambda: models.DenseNet(4, (2, 2), 8, num_classes=CLASSES),
        "torchvision mobilenet_v3_small": lambda: models.MobileNetV3(mobile, 32, num_classes=CLASSES),
        "torchvision efficientnet_b0": lambda: models.EfficientNet(efficient, 0.2, num_classes=CLASSES),
        "torchvision convnext_tiny": lambda: models.ConvNeXt(convnext, num_classes=CLASSES),
        "torchvision vit_b_16": lambda: models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=CLASSES),
        "torchvision swin_t": lambda: models.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=CLASSES),
        "timm vit_tiny_patch16_224": lambda: timm.create_model("vit_tiny_patch16_224", **attention),
        "transformers GPT2LMHeadModel": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, **texts)
        ),
        "transformers BertForSequenceClassification": lambda: transformers.BertForSequenceClassification(
            transformers.BertConfig(max_position_embeddings=LENGTH, num_labels=CLASSES, **of_bert, **texts)
        ),
    }


def _two_groups() -> nn.Module:
    """Without the groups of 1,024 and 2,048 channels, which have nothing that the second has not."""
    net = torchvision.models.ResNet(torchvision.models.resnet.Bottleneck, [1, 1, 1, 1], CLASSES, width_per_group=4)
    net.layer3, net.layer4, net.fc = nn.Identity(), nn.Identity(), nn.Linear(512, CLASSES)
    return net


def full() -> dict[str, Callable[[], nn.Module]]:
    names = ("resnet50", "densenet121", "mobilenet_v3_small", "efficientnet_b0", "convnext_tiny", "vit_b_16", "swin_t")
    found: dict[str, Callable[[], nn.Module]] = {
        f"torchvision {name}": partial(getattr(torchvision.models, name)) for name in names
    }
    return found | {
        "timm vit_tiny_patch16_224": partial(timm.create_model, "vit_tiny_patch16_224"),
        "transformers GPT2LMHeadModel": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
        "transformers BertForSequenceClassification": lambda: transformers.BertForSequenceClassification(
            transformers.BertConfig(num_labels=CLASSES)
        ),
    }


def batch_for(name: str, side: int = 32) -> Any:
    """Four samples: pictures, or sequences of which two are shorter."""
    drawn = torch.Generator().manual_seed(0)
    if "transformers" not in name:
        return torch.randn(4, 3, side, side, generator=drawn), torch.arange(4) % CLASSES
    tokens, mask = torch.randint(TOKENS, (4, LENGTH), generator=drawn), torch.ones(4, LENGTH, dtype=torch.long)
    mask[2:, LENGTH // 2 :] = 0
    labels = torch.arange(4) % CLASSES if "Bert" in name else tokens.masked_fill(mask == 0, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def outcomes(nets: dict[str, Callable[[], nn.Module]]) -> dict[str, dict[str, str]]:
    """Network -> measure -> "" where it runs, else why not."""
    return {name: dict(_each(name, make)) for name, make in nets.items()}


def _each(name: str, make: Callable[[], nn.Module], side: int = 32) -> Iterator[tuple[str, str]]:
    torch.manual_seed(0)
    context = MeasureContext(make().eval(), [batch_for(name, side)])
    for measure, make_measure in MEASURES.items():
        yield measure, _outcome(make_measure(), context)
    yield TWINS, _twins(context.net)


def _twins(net: nn.Module) -> str:
    """TwinDivergence compares a net with the one of the same function that a run makes of it."""
    try:
        build_members({"net": Arm(net=lambda: net), "twin": Arm(twin_of="net")}, (0,))
    except UserError as error:
        return reason(error).replace(type(net).__name__, "this net", 1)
    return ""


def _outcome(measure: Measure, context: MeasureContext) -> str:
    try:
        if isinstance(measure, StatefulMeasure):
            context.state = measure._state
            measure.begin(context)
        found = measure.within_memory(context)
        why = "" if found else next(iter(measure._warned), "no numbers")
        return NO_BLOCKS if why.endswith(NO_BLOCKS) else why
    except Exception as error:  # of a measure that cannot: it is what the table is about
        return reason(error)


def table(found: dict[str, dict[str, str]]) -> str:
    """A row a network; reasons are numbered below."""
    reasons = list(dict.fromkeys(why for row in found.values() for why in row.values() if why))
    lines = [HEAD + " | ".join([*MEASURES, TWINS]) + " |", "|---|" + "---|" * (len(MEASURES) + 1)]
    for name, row in found.items():
        cells = [f"no: {reasons.index(why) + 1}" if why else "runs" for why in row.values()]
        lines.append(markdown_row((name, *cells)))
    return "\n".join([*lines, "", *(f"{number}. {why}" for number, why in enumerate(reasons, start=1))]) + "\n"


def written(page: str) -> str:
    """The table in a page, to the next heading."""
    start = page.index(HEAD)
    return page[start : page.index("\n## ", start) + 1].rstrip() + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    published = full()
    names = sorted({word for name in published for word in name.split()})
    parser = argparse.ArgumentParser(prog="python -m docs.architectures", description="Write the table, or:")
    parser.add_argument("--full", nargs="?", const="", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    chosen = parser.parse_args(argv).full
    if chosen is None:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page.replace(written(page), table(outcomes(small()))), encoding="utf-8")
        return
    for name, make in published.items():
        began = time.perf_counter()
        for measure, why in _each(name, make, side=224) if not chosen or chosen in name.split() else ():
            took = time.perf_counter() - began
            print(f"{name} | {measure} | {f'no: {why}' if why else 'runs'} | {took:.0f} s", flush=True)
            began = time.perf_counter()


if __name__ == "__main__":
    main()
