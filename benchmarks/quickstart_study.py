"""Where is the papers' effect within two minutes? Plain against residual nets on the embedded digits, setting by setting.

    python -m benchmarks.quickstart_study --stage screen|look|test|second-look|second-test --out FILE.csv

``screen`` tries every setting with one seed, ``look`` one with three others, ``test`` with thirteen others again, and says
whether the registered prediction (docs/quickstart-study.md) holds; it did not, hence a second setting. Each is one run of
``fit`` with both arms, which differ in nothing but the skips and the initialisation that the papers give to each kind.
"""

import argparse
import contextlib
import csv
import io
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from lightning_app.cli import main as run_command
from lightning_app.common.provenance import commit, processor, threads, versions
from lightning_app.networks import SimplifiedNet
from lightning_app.runs import open_run

NUMBERS = ["train/risk", "train/error", "test/error"]
PLAIN_ABOVE, RESIDUAL_BELOW = 0.5, 0.25  # test errors of the registered prediction
ARMS = ("plain", "residual")
CORRECTED = "benchmarks.quickstart_study.Corrected"


class Corrected(SimplifiedNet):
    """A plain net whose kernels make up for the zeros around small images, which KWI does not count.

    At the border of an n x n map a 3 x 3 kernel sees zeros: on 2 x 2 maps 5 of 9 inputs, so that KWI loses more than half
    of the signal's power a layer. The factor restores the power on average. Residual nets stay as they are.
    """

    def __init__(self, image_size: int, residual: bool = False, **of_net: Any) -> None:
        super().__init__(residual=residual, **of_net)
        size = image_size
        for layer in () if residual else self.layers()[1:-1]:
            taps = (3 * size - 2) / size if layer.stride == 1 else (3 * size / 2 - 1) / (size / 2)  # in one direction
            size //= layer.stride
            with torch.no_grad():
                layer.weight.mul_(3 / taps)


@dataclass(frozen=True)
class Setting:
    """One row of the scan: the same for both arms."""

    net: str = "SimplifiedNet"
    depth: int = 44
    width: int = 8
    image_size: int = 8
    optimizer: str = "Adam"
    lr: float = 0.001
    batch_size: int = 32
    epochs: int = 4
    other: str = ""  # options of `fit` on top of all this

    def config(self, seeds: str, root: Path) -> dict[str, Any]:
        """What `fit` is given."""
        size = {"image_size": self.image_size} if self.net == CORRECTED else {}
        net = {"depth": self.depth, "width": self.width, **size}
        rate = {"lr": self.lr} | ({"momentum": 0.9} if self.optimizer == "SGD" else {})
        arms = {arm: {"class_path": self.net, "init_args": {**net, "residual": arm == "residual"}} for arm in ARMS}
        model = {
            "arms": {arm: {"net": spec} for arm, spec in arms.items()},
            "optimizer": {"class_path": f"torch.optim.{self.optimizer}", "init_args": rate},
            **{"seeds": seeds, "scheduler": None},
        }
        args = {"image_size": self.image_size, "batch_size": self.batch_size, "augment": False}
        data = {"class_path": "Digits", "init_args": args}
        trainer = {"max_epochs": self.epochs, "logger": False, "callbacks": [{"class_path": "TrainingMetrics"}]}
        return {"run": {"root": str(root), "group": "study"}, "data": data, "model": model, "trainer": trainer}


FIRST_AND_LAST = "--model.arms.{0}.net.init_conv0 kwi --model.arms.{0}.net.init_fc kwi"
WARM_UP = "torch.optim.lr_scheduler.LinearLR --model.scheduler.start_factor 0.1 --model.scheduler.total_iters 2"
FIRST = Setting()  # failed its test: one of 13 residual nets was at 0.49
CHOSEN = Setting(lr=0.0003)
SCREEN = (
    *(Setting(depth=depth) for depth in (20, 32, 44, 56)),
    *(Setting("CifarResNet", depth) for depth in (20, 56)),
    *(Setting(CORRECTED, lr=lr) for lr in (0.0001, 0.001)),
    *(Setting(lr=lr) for lr in (0.0001, 0.0003, 0.003)),
    *(Setting(optimizer="SGD", lr=lr) for lr in (0.01, 0.05)),
    Setting(image_size=16),
    *(Setting(width=width) for width in (4, 16)),
    Setting(optimizer="SGD", lr=0.01, other=f"--model.scheduler {WARM_UP}"),
    Setting(optimizer="SGD", lr=0.01, other=" ".join(FIRST_AND_LAST.format(arm) for arm in ARMS)),
    Setting(batch_size=128),
    Setting(other="--data.augment true --data.padding 1"),
    Setting(depth=20, image_size=32, other="--data.augment true"),  # the quickstart before, but half as wide
    Setting("CifarResNet", 56, optimizer="SGD", lr=0.1),
    Setting(lr=0.0001, epochs=12),
)
STAGES = {  # seeds and settings
    "screen": ("100-100", SCREEN),
    "look": ("101-103", (FIRST,)),
    "test": ("200-212", (FIRST,)),
    "second-look": ("104-106", (CHOSEN,)),
    "second-test": ("300-312", (CHOSEN,)),
}
HEAD = (*Setting.__dataclass_fields__, "arm", "seed", "epoch", *NUMBERS)


def rows_of(setting: Setting, seeds: str) -> Iterator[tuple[object, ...]]:
    """Train both arms: a row for each net and epoch."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder, "setting.yaml")).write_text(
            yaml.safe_dump(setting.config(seeds, Path(folder))), encoding="utf-8"
        )
        with contextlib.redirect_stdout(io.StringIO()):
            code = run_command(["fit", "--config", str(file), *shlex.split(setting.other)])
        if code not in (0, 2):  # 2: a net diverged, and the epochs before are in the log
            raise RuntimeError(f"{setting}: exit code {code}.")
        run = open_run(Path(folder) / "study" / "run")
        nets = run.nets()
        for (member, epoch), numbers in run.table().iterrows():
            if member:
                values = (f"{value:.5g}" for value in numbers.reindex(NUMBERS))
                yield *astuple(setting), nets.loc[member, "arm"], nets.loc[member, "seed"], epoch, *values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the CSV to write")
    options = parser.parse_args()
    command = f"python -m benchmarks.quickstart_study --stage {options.stage} --out {options.out.name}"
    made_by = f"commit: {commit()}; {threads()} threads of {processor()}"
    made_with = f"python {sys.version.split()[0]}, {versions(('torch', 'pytorch-lightning', 'numpy'))}"
    ends = []
    with options.out.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# command: {command}\n# {made_by}\n# {made_with}\n")
        writer = csv.writer(file)
        writer.writerow(HEAD)
        seeds, settings = STAGES[options.stage]
        for setting in settings:
            for row in rows_of(setting, seeds):
                writer.writerow(row)
                if row[-4] == setting.epochs:
                    ends.append((row[-6], float(str(row[-1]))))
                    print(*row, flush=True)
            file.flush()
    if "test" in options.stage:
        holds = all(error > PLAIN_ABOVE if arm == "plain" else error < RESIDUAL_BELOW for arm, error in ends)
        print(f"{len(ends)} nets: the registered prediction {'holds' if holds else 'FAILS'}.")
        sys.exit(not holds)


if __name__ == "__main__":
    main()
