"""What `reproduce` says to a user, right or wrong."""

import re
from pathlib import Path

import pytest

from lightning_app.cli import main
from lightning_app.papers import PAPERS, paper
from lightning_app.papers.parts import REDUCED, SCALES, Computation
from lightning_app.papers.verdicts import Verdict
from lightning_app.reproduce.evidence import Reproduction
from tests.helpers import command
from tests.reproduce.conftest import BY_PRINT, SEPARATED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["yu-tomasi/tabel-1"], "Did you mean 'yu-tomasi/table-1'?"),
        (["yu-tomsi/table-1"], "Did you mean 'yu-tomasi'?"),
        (["yu-tomasi/fig-99"], "Expected one of: yu-tomasi/table-1, "),
        ([], "expected an artefact, such as"),
        (["yu-tomasi", "--scale", "huge"], "invalid choice: 'huge'"),
        (["yu-tomasi/fig-3", "--seeds", "0-"], "numbers and ranges"),
        (
            ["yu-tomasi/fig-3", "--only", "depth44"],
            "computations of what is reproduced (depth20, depth32), got 'depth44'",
        ),
        (["yu-tomasi/fig-3", "--", "--trainer.max_epochs", "3"], "the artefact fixes all others"),
        (["yu-tomasi/fig-3", "--", "-c", "other.yaml"], "the artefact fixes all others"),
        (["yu-tomasi/fig-3", "--", "--trainer.strategy", "ddp"], "need --trainer.strategy seeds"),
        (["yu-tomasi/fig-3", "--", "--trainer.devices=8"], "need --trainer.strategy seeds"),
        (["yu-tomasi/fig-6", "--", "--trainer.accelerator", "gpu"], "leave it out, as equivalent20 sets it itself"),
        (["yu-tomasi/fig-3", "--seeds", "7-7"], "--seeds: expected seeds of what is reproduced (depth20 0-1;"),
        (["yu-tomasi/fig-3", "--seeds", "7"], "), got 7."),
        (
            ["yu-tomasi/fig-3", "--no-train", "--runs", "nowhere", "--out", "nor-there"],
            "expected a folder of runs at nowhere",
        ),
        (["yu-tomasi/fig-3", "--", "--model.weight_decay=0"], "the artefact fixes all others"),
        (
            ["--list", "--scale", "paper"],
            "--list shows all runs at every scale, so --scale has no effect: leave",
        ),
        (
            ["yu-tomasi/fig-3", "--no-train", "--only", "depth20"],
            "--no-train judges all runs that exist, so --only has",
        ),
        (["yu-tomasi/fig-3", "--no-train", "--seeds", "0-1"], "so --seeds has no effect"),
        (["yu-tomasi/fig-3", "--no-train", "--", "--trainer.devices=1"], "so what follows -- has no effect"),
        (["yu-tomasi/fig-3", "--runs", ""], "expected a value, got an empty text"),
        (["yu-tomasi/fig-3", "--out="], "expected a value after --out=, got an empty text"),
    ],
)
def test_a_mistake_is_one_message(words, said, capsys):
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_every_artefact_is_listed_with_its_state(tmp_path):
    listed = command("reproduce", "--list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    for key, artefact in ALL:
        (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f"{key}/{artefact.key} ")]
        reduced = "not run" if artefact.has(REDUCED) else "–"
        assert re.search(rf" not run +{reduced} ", line)
    assert "no folder of results at results" in listed.stderr  # why nothing is: they lie elsewhere
    assert not list(tmp_path.iterdir())  # asking changes nothing


def test_the_run_s_yaml_exists_for_every_artefact():
    for key, artefact in ALL:
        for scale in SCALES.values():
            for plan in Reproduction(paper(key), artefact, scale, Path("results")).trainings:
                assert plan.config.exists()
                assert plan.epochs > 0


ALL = [(key, artefact) for key in PAPERS for artefact in paper(key).artefacts]
NAMES = [f"{key}/{artefact.key}" for key, artefact in ALL]


@pytest.mark.parametrize(("key", "artefact"), ALL, ids=NAMES)
def test_without_anything_nothing_is_tested_and_nothing_drawn(key, artefact, made, results):
    verdicts = made(artefact.key, paper=key)
    if artefact.key == "fig-7" and key == "yu-tomasi":
        assert verdicts.pop(BY_PRINT) == Verdict.NOT_REPRODUCED  # of no run
        assert verdicts.pop(SEPARATED) == Verdict.DESCRIBED  # a closed form
    assert set(verdicts.values()) == {Verdict.NOT_TESTED}
    if artefact.draw is not None:
        axes = artefact.draw(results(artefact.key, key)[1]).axes  # lines that are there for reference are short
        assert not [line for each in axes for line in each.lines if len(line.get_xdata()) > 10]


COMPUTED = [
    (key, artefact) for key, artefact in ALL if artefact.computations and key not in ("beyond", "findings")
]  # minutes


# Computation -> whether a piece takes many seconds
EXPENSIVE = {"initial-hessian": lambda asked: asked["depth"] > 8, "zero-point": lambda asked: asked["n"] > 2}
EXPENSIVE |= {"spectra-at-gaps": lambda asked: asked["depth"] > 12}


def left_out(key: str, computation: Computation) -> list[str]:
    """Pieces; of what test_littwin_wolf.py computes whole, all but the first ones."""
    if key == "littwin-wolf":
        return [*computation.pieces][2:]
    expensive = EXPENSIVE.get(computation.name, lambda asked: False)
    return [name for name, asked in computation.pieces.items() if expensive(asked)]


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory) -> Path:
    """What one artefact has computed another one finds."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@pytest.mark.parametrize(("key", "artefact"), COMPUTED, ids=[f"{key}/{artefact.key}" for key, artefact in COMPUTED])
def test_what_is_computed_is_computed_once_at_smoke_scale(key, artefact, shared_runs, tmp_path, capsys, monkeypatch):
    """On the digits where it needs data; what some of them train besides is trained in test_littwin_wolf_runs.py."""
    for computation in artefact.computations:
        for piece in left_out(key, computation):
            monkeypatch.delitem(computation.pieces, piece)
    name, places = f"{key}/{artefact.key}", ["--runs", str(shared_runs), "--out", str(tmp_path / "out")]
    words = [name, *places, "--only", ",".join(computation.name for computation in artefact.computations)]
    words += ["--data-root", str(tmp_path / "none")]
    new = any(not (shared_runs / f"{key}-smoke" / computation.name).exists() for computation in artefact.computations)
    assert main(["reproduce", *words]) == 0
    said = capsys.readouterr().out
    assert ("compute " in said) == new  # else another artefact has computed it
    assert ("on the embedded digits, which stand in for MNIST (5" in said) is (key == "li-et-al")
    folder = tmp_path / "out" / key / artefact.key / "smoke"
    figure = {f"figure.{end}" for end in ("pdf", "svg", "png")} if artefact.draw else set()
    assert {file.name for file in folder.iterdir()} == {"table.md", "table.csv", "table.tex", "verdict.json"} | figure
    assert main(["reproduce", "--list", name, *places]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(name)]
    assert re.search(r" not run +– ", line)  # smoke scale is no verdict


def test_help_names_the_examples(capsys):
    assert main(["reproduce", "--help"]) == 0
    assert "yu-tomasi/table-1" in capsys.readouterr().out
