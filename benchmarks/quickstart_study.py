"""Where is the papers' effect within two minutes? Plain against residual nets on the embedded digits, setting by setting.

    python -m benchmarks.quickstart_study --stage screen|look|test|second-look|second-test --out FILE.csv

``screen`` tried every setting with one seed, ``look`` one with three others, ``test`` with thirteen others again, to see
whether the registered prediction (docs/quickstart-study.md) holds; it did not, hence a second setting, which is now the
quickstart. This trains a stage again: settings and seeds are those of its committed file, each a run of `fit` on
configs/quickstart.yaml with both arms, which differ in their skips and the initialisation that the papers give to each kind.
"""

import argparse
import contextlib
import io
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.harness import ROOT, write_csv
from benchmarks.loops import ARMS
from lightning_app.cli import main as run_command
from lightning_app.networks import SimplifiedNet
from lightning_app.runs import open_run

STAGES = ("screen", "look", "test", "second-look", "second-test")
SETTING = ["net", "depth", "width", "image_size", "optimizer", "lr", "batch_size", "epochs", "other"]
NUMBERS = ["train/risk", "train/error", "test/error"]
PLAIN_ABOVE, RESIDUAL_BELOW = 0.5, 0.25  # test errors of the registered prediction


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


def committed(stage: str) -> pd.DataFrame:
    file = ROOT / "docs" / "results" / f"2026-11-23-quickstart-{stage}.csv"
    return pd.read_csv(file, comment="#", keep_default_na=False)


def holds(table: pd.DataFrame) -> bool:
    """Does the registered prediction, for the last epoch of every net?"""
    ends = table[table["epoch"] == table["epochs"]].groupby("arm")["test/error"]
    return bool(ends.min()["plain"] > PLAIN_ABOVE and ends.max()["residual"] < RESIDUAL_BELOW)


def words_of(setting: Any) -> list[str]:
    """Options of `fit` on configs/quickstart.yaml."""
    chosen = {"model.optimizer": f"torch.optim.{setting.optimizer}", "model.optimizer.lr": setting.lr}
    chosen |= {"model.optimizer.momentum": 0.9} if setting.optimizer == "SGD" else {}
    for arm, residual in ARMS.items():
        net = {"": setting.net, ".depth": setting.depth, ".width": setting.width, ".residual": residual}
        net |= {".image_size": setting.image_size} if setting.net.endswith(Corrected.__name__) else {}
        chosen |= {f"model.arms.{arm}.net{key}": value for key, value in net.items()}
    chosen |= {"data.image_size": setting.image_size, "data.batch_size": setting.batch_size}
    chosen |= {"trainer.max_epochs": setting.epochs, "trainer.callbacks": "TrainingMetrics"}
    return [word for key, value in chosen.items() for word in (f"--{key}", str(value))] + shlex.split(setting.other)


def rows_of(setting: Any, seeds: str) -> Iterator[tuple[object, ...]]:
    """Train both arms: a row for each net and epoch."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        fit = ["fit", "--config", str(ROOT / "configs" / "quickstart.yaml"), *words_of(setting)]
        code = run_command(
            [*fit, "--model.seeds", seeds, "--run.root", folder, "--run.name", "study", "--trainer.logger", "false"]
        )
        if code not in (0, 2):  # 2: a net diverged, and the epochs before are in the log
            raise RuntimeError(f"{setting}: exit code {code}.")
        run = open_run(next(Path(folder).glob("*/study")))
        nets, table = run.nets(), run.table()
    for (member, epoch), numbers in table.iterrows():
        if member:
            values = (f"{value:.5g}" for value in numbers.reindex(NUMBERS))
            yield *setting, nets.loc[member, "arm"], nets.loc[member, "seed"], epoch, *values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stage", choices=STAGES, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the CSV to write")
    options = parser.parse_args()
    table, command = committed(options.stage), f"--stage {options.stage} --out {options.out.name}"
    settings, seeds = table[SETTING].drop_duplicates().itertuples(index=False), table["seed"]
    rows = (row for setting in settings for row in rows_of(setting, f"{seeds.min()}-{seeds.max()}"))
    head = (*SETTING, "arm", "seed", "epoch", *NUMBERS)
    write_csv(options.out, head, rows, f"python -m benchmarks.quickstart_study {command}")
    if "test" in options.stage:
        held = holds(pd.read_csv(options.out, comment="#"))
        print(f"The registered prediction {'holds' if held else 'FAILS'}.")
        sys.exit(not held)


if __name__ == "__main__":
    main()
