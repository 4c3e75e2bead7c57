"""Lazy packages: every exported name resolves to what its import statement says, and only then is it imported."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lightning_app.common import late
from lightning_app.common.lazy import lazy
from tests.helpers import ROOT

LAZY = [
    ".".join(file.parent.relative_to(ROOT).parts)
    for folder in ("lightning_app", "callbacks")
    for file in sorted((ROOT / folder).rglob("__init__.py"))
    if "lazy(__name__" in file.read_text()
]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `shapes` with a module that notes when it is imported."""
    folder = tmp_path / "shapes"
    folder.mkdir()
    (folder / "round.py").write_text("class Circle: pass\n")
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from lightning_app.common.lazy import lazy\n"
        "if TYPE_CHECKING:\n"
        "    from shapes.round import Circle\n"
        "    from shapes.round import Circle as Disc\n"
        "__all__ = ['Circle', 'Disc']\n"
        "__getattr__ = lazy(__name__, renamed={'Ring': 'Circle'})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shapes")
    for name in ("shapes", "shapes.round"):
        sys.modules.pop(name, None)


def test_a_name_is_imported_when_it_is_first_used(package):
    assert "Circle" in dir(package) and "shapes.round" not in sys.modules
    circle = package.Circle
    assert circle is sys.modules["shapes.round"].Circle
    assert package.Disc is package.Ring is circle
    assert package.__dict__["Circle"] is circle


def test_an_unknown_name_is_an_attribute_error_and_so_an_import_error(package):
    with pytest.raises(AttributeError, match="module 'shapes' has no attribute 'Square'"):
        _ = package.Square
    with pytest.raises(ImportError, match="Square"):
        exec("from shapes import Square", {})


def test_a_star_import_takes_all_that_is_exported(package):
    names = {}
    exec("from shapes import *", names)
    assert {"Circle", "Disc"} <= set(names) and "Ring" not in names


@pytest.mark.parametrize("package", LAZY)
def test_every_exported_name_is_found_where_the_package_says(package):
    """A submodule of the same name would hide a function: `import a.b` sets the attribute b of a."""
    module = importlib.import_module(package)
    resolve = lazy(package)
    hidden = {name for name in module.__all__ if Path(module.__path__[0], f"{name}.py").exists()}
    assert not hidden
    assert all(getattr(module, name) is resolve(name) for name in module.__all__)


def test_one_measure_does_not_import_the_others():
    code = "import sys; from lightning_app.measures import weight_mass; print(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    measures = {name for name in found.stdout.split() if name.startswith("lightning_app.measures.")}
    assert measures <= {"lightning_app.measures.weights", "lightning_app.measures.weights.mass"} | {
        name for name in measures if name.startswith("lightning_app.measures.core")
    }


def test_what_is_late_is_the_module_itself():
    assert late.torch.ones is torch.ones and late.F.relu is F.relu and late.nn.Linear is nn.Linear
