"""The notebooks run one after the other in an empty folder, and what their text says of the results is true of them."""

import json
import re
import sys
from base64 import b64decode
from unittest import mock

import pytest
from tutorial import executed, notebooks

from skipscope import open_run
from tests.forked import Popen

pytestmark = pytest.mark.slow
BYTES = 60_000  # of a picture
INLINE = "module://matplotlib_inline.backend_inline"  # imported by the first figure, when there is a shell


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks")


def kernel(call: list[str], **options) -> Popen:
    """``python -m ipykernel_launcher ...`` as a fork of a process that has the libraries, matplotlib with its own backend too."""
    code = "import matplotlib, sys; from ipykernel.kernelapp import launch_new_instance; "
    code += f"matplotlib.rcParams['backend'] = '{INLINE}'; sys.argv = {call[2:]}; launch_new_instance()"
    return Popen([sys.executable, "-c", code], **options)


@pytest.fixture(scope="module")
def ran(folder) -> dict[str, dict]:
    """Each notebook after all its cells have run, by name; a cell that raises ends it here."""
    with mock.patch("jupyter_client.launcher.Popen", kernel):
        return {path.stem: notebook for path, notebook in executed(folder).items()}


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: dict) -> list[list[str]]:
    """Of each output: where it is printed, or as what it is shown."""
    return [[one["name"]] if one["output_type"] == "stream" else sorted(one["data"]) for one in cell["outputs"]]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_committed_outputs_are_of_this_code_and_say_nothing_of_a_machine(path, ran):
    committed = json.loads(path.read_text())
    fresh = code_cells(ran[path.stem])
    assert [cell["execution_count"] for cell in code_cells(committed)] == [*range(1, len(fresh) + 1)]
    hint = "run `python docs/tutorial.py` and look at what it changed"
    assert [kinds(cell) for cell in code_cells(committed)] == [kinds(cell) for cell in fresh], hint
    outputs = [one for cell in code_cells(committed) for one in cell["outputs"]]
    assert not [one for one in outputs if one.get("name") == "stderr"]
    texts = "".join("".join(one.get("text") or one["data"].get("text/plain", "")) for one in outputs)
    assert not re.search(r"(^|[\s'\"(])/\w+/|[A-Z]:\\", texts), "no paths of a machine"
    pictures = [b64decode(one["data"]["image/png"]) for one in outputs if "image/png" in one.get("data", {})]
    assert all(len(picture) <= BYTES for picture in pictures)


def test_the_text_says_what_skips_do(ran, folder):
    errors = open_run(folder / "runs" / "digits" / "quickstart").finals()["test/error"]
    assert errors["plain"] > 0.5 and errors["residual"] < 0.25
    said = "".join("".join(one["text"]) for one in code_cells(ran["1-what-skips-do"])[0]["outputs"])
    assert "the residual net is ahead." in said
    (table,) = (
        "".join(one["data"]["text/plain"])
        for cell in code_cells(ran["1-what-skips-do"])
        for one in cell["outputs"]
        if "text/html" in one.get("data", {})
    )
    numbers = [[float(number) for number in line.split()[-3:]] for line in table.splitlines()[2:]]
    (start, back, _), (end, _, alike), (start_r, back_r, _), (end_r, _, alike_r) = (
        numbers  # plain 1, 42, residual 1, 42
    )
    assert end < start / 1e3 and end_r > start_r / 10
    assert back < back_r / 1e2
    assert alike > 0.9 and alike_r < 0.85


def test_the_text_says_what_a_measure_finds(ran, folder):
    layers = open_run(folder / "runs" / "digits" / "mine").layers()
    change = layers[layers["field"] == "median"].groupby("member")["value"].agg(["min", "max"])
    assert change.loc["residual", "max"] < change.loc["plain", "min"]
