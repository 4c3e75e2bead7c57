"""What `reproduce` says to a user, right or wrong."""

import re

import pytest

from lightning_app.papers import PAPERS, paper
from lightning_app.papers.parts import REDUCED
from lightning_app.reproduce import main
from tests.helpers import command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["yu-tomasi/tabel-1"], "Did you mean 'yu-tomasi/table-1'?"),
        (["yu-tomsi/table-1"], "Did you mean 'yu-tomasi'?"),
        (["yu-tomasi/fig-99"], "Expected one of: yu-tomasi/table-1, "),
        ([], "name an artefact"),
        (["yu-tomasi", "--scale", "huge"], "invalid choice: 'huge'"),
        (["yu-tomasi/fig-3", "--seeds", "0-"], "numbers and ranges"),
        (["yu-tomasi/fig-3", "--only", "depth44"], "runs of what is reproduced: depth20, depth32; got 'depth44'"),
        (["yu-tomasi/fig-3", "--", "--trainer.max_epochs", "3"], "the artefact decides the rest"),
        (["yu-tomasi/fig-3", "--", "-c", "other.yaml"], "the artefact decides the rest"),
        (["yu-tomasi/fig-6", "--", "--trainer.accelerator", "gpu"], "equivalent20 decides this itself"),
        (["yu-tomasi/fig-3", "--seeds", "7-7"], "none of the seeds is one of what is reproduced (depth20 0-1;"),
        (
            ["yu-tomasi/fig-3", "--no-train", "--runs", "nowhere", "--out", "nor-there"],
            "expected a folder of runs at nowhere",
        ),
        (["yu-tomasi/fig-3", "--", "--model.weight_decay=0"], "the artefact decides the rest"),
    ],
)
def test_a_mistake_is_one_sentence(words, said, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_every_artefact_is_listed_with_its_state(tmp_path):
    listed = command("reproduce", "--list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    for key in PAPERS:
        for artefact in paper(key).artefacts:
            (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f"{key}/{artefact.key} ")]
            reduced = "not run" if artefact.has(REDUCED) else "–"
            assert re.search(rf" not run +{reduced} ", line)
    assert not list(tmp_path.iterdir())  # asking changes nothing


def test_the_run_s_yaml_exists_for_every_artefact():
    from lightning_app.papers.parts import SCALES
    from lightning_app.reproduce.evidence import trainings_of

    for key in PAPERS:
        for artefact in paper(key).artefacts:
            for scale in SCALES.values():
                for plan in trainings_of(paper(key), artefact, scale):
                    assert plan.config.exists()
                    assert plan.epochs > 0


def test_help_names_the_examples(capsys):
    assert main(["--help"]) == 0
    assert "yu-tomasi/table-1" in capsys.readouterr().out
