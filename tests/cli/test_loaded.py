"""What `fit` imports until the report is written: no papers, no theory, no nets and measures that nobody asked for."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.deploy.test_image import copied
from tests.helpers import ROOT, TINY

COUNT = """
import runpy, sys
sys.modules["wandb"] = None  # as if it were not installed
from lightning_app.cli.training import TrainingCLI

after_fit = TrainingCLI.after_fit

def note(self):
    loaded = sorted(name for name in sys.modules if name.split(".")[0] in ("lightning_app", "callbacks"))
    with open("loaded.txt", "w") as file:
        print(*loaded, sep="\\n", file=file)
    after_fit(self)

TrainingCLI.after_fit = note
runpy.run_path("main.py", run_name="__main__")
"""
EARLY = """
import sys, main
try:
    ended = main.main()
except SystemExit as stop:
    ended = stop.code
assert "torch" not in sys.modules
sys.exit(ended)
"""
MOST = 93  # files of lightning_app and callbacks, of which 12 are packages that import lazily


@pytest.mark.slow
def test_what_the_image_copies_is_enough_and_fit_loads_what_it_uses_until_the_report_and_needs_no_wandb(tmp_path):
    for source in copied():
        target = tmp_path / source
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, target)
    tiny = ["configs/quickstart.yaml" if word.endswith("quickstart.yaml") else word for word in TINY]
    words = [sys.executable, "-c", COUNT, *tiny, "--trainer.max_epochs", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded = (tmp_path / "loaded.txt").read_text().split()
    assert len(loaded) < MOST, "\n".join(loaded)
    assert not [name for name in loaded if name.startswith(("lightning_app.reproduce", "lightning_app.theory"))]
    assert done.stdout.startswith("W&B is not installed: the run folder has everything")
    assert (tmp_path / "runs/digits/quickstart/report.html").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [("--help", 0), ("report --help", 0), ("transfer --help", 0), ("transfer", 2), ("transfer in loaded.txt", 2)],
)
def test_help_and_early_mistakes_need_no_torch(tmp_path, words, code):
    (tmp_path / "loaded.txt").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-c", EARLY, *words.split()]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
