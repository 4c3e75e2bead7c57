"""Installed without a checkout: the command, its configurations, the packages, and what stands in their way."""

import os
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import skipscope
from lightning_app.cli.parser import prescan
from lightning_app.common.provenance import configs, packaged
from tests.helpers import LEARNING, ROOT, TINY

LIBRARIES = Path(find_spec("numpy").origin).parents[1]  # where what we need is installed


def run(*words: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "WANDB_SERVICE")}
    environment = clean | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_a_shipped_configuration_is_found_from_any_folder_and_ones_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert packaged("configs/res20.yaml") == str(ROOT / "configs" / "res20.yaml")
    assert packaged("configs/nowhere.yaml") == "configs/nowhere.yaml"
    assert packaged("res20.yaml") == "res20.yaml"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "res20.yaml").touch()
    assert packaged("configs/res20.yaml") == "configs/res20.yaml"


def test_only_what_names_a_configuration_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = str(ROOT / "configs" / "res20.yaml")
    argv = ["fit", "-c", "configs/res20.yaml", "--config=configs/res20.yaml", "--data.root", "configs/res20.yaml"]
    assert prescan(argv)[0] == ["fit", "-c", found, f"--config={found}", "--data.root", "configs/res20.yaml"]
    first = ["fit", "--trainer.max_epochs", "1", "--config", "configs/res20.yaml"]  # an option counts over any file
    assert prescan(first)[0] == ["fit", "--config", found, "--trainer.max_epochs", "1"]
    inline = ["measure", "--config", "model:\n  seeds: 3\n" * 500]  # a configuration itself, longer than any name
    assert prescan(inline)[0] == inline


def test_the_checkout_has_its_own():
    assert configs() == ROOT / "configs"


@pytest.mark.parametrize("name", ["lightning_app", "callbacks"])
@pytest.mark.parametrize("file", ["{}/__init__.py", "{}.py"])
def test_another_package_of_our_name_is_named_and_not_run(tmp_path, name, file):
    other = tmp_path / "other" / file.format(name)
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_text("raise SystemExit('somebody else ran')\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path / 'other')!r}, {str(ROOT)!r}]; import skipscope"
    done = run(sys.executable, "-c", f"{code}; sys.exit(skipscope.main())", "--help", cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: expected SkipScope's own package `{name}` in {ROOT}, found {other}." in done.stderr
    assert f"take the folder {tmp_path / 'other'} off PYTHONPATH" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_folder_of_the_user_s_that_is_no_package_is_in_nobody_s_way(tmp_path):
    (tmp_path / "callbacks").mkdir()
    done = run(sys.executable, ROOT / "main.py", "--help", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from the files that git knows, without network; `make wheel` says where it is kept."""
    source = tmp_path_factory.mktemp("source")
    target = Path(os.environ.get("SKIPSCOPE_WHEEL") or tmp_path_factory.mktemp("wheel")).resolve()
    for older in target.glob("skipscope-*.whl"):
        older.unlink()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(("lightning_app", "callbacks", "skipscope", "configs")) or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    words = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", target, source)
    done = run(sys.executable, *words, cwd=tmp_path_factory.mktemp("empty"))
    assert done.returncode == 0, done.stderr
    return next(target.glob("skipscope-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The command in an environment of its own, which borrows the libraries of this one."""
    home = tmp_path_factory.mktemp("environment")
    assert run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home).returncode == 0
    words = ("--python", home / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    done = run(sys.executable, "-m", "pip", *words, cwd=home)
    assert done.returncode == 0, done.stderr
    (next(home.glob("lib/python*/site-packages")) / "libraries.pth").write_text(f"{LIBRARIES}\n")
    return home / "bin" / "skipscope"


@pytest.mark.slow
def test_the_wheel_has_every_configuration_and_no_name_that_is_anybody_s(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped_there = {name.partition("/share/skipscope/")[2] for name in names if name.endswith(".yaml")}
    shipped_there.remove("")  # the registration of claims, which lies beside the code
    tracked = subprocess.run(["git", "ls-files", "configs/*.yaml"], cwd=ROOT, capture_output=True, text=True).stdout
    assert shipped_there == set(tracked.split())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if "-0." not in top} == {"skipscope", "lightning_app", "callbacks"}


@pytest.mark.slow
def test_the_wheel_tells_type_checkers_that_all_packages_are_typed(wheel):
    assert {f"{name}/py.typed" for name in ("lightning_app", "callbacks", "skipscope")} <= {
        *zipfile.ZipFile(wheel).namelist()
    }


@pytest.mark.slow
def test_the_unpacked_wheel_works_where_it_lies(wheel, tmp_path):
    unpacked, empty = tmp_path / "unpacked", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(unpacked)
    code = "import sys, skipscope; sys.argv[0] = 'skipscope'; sys.exit(skipscope.main())"
    said = run(sys.executable, "-c", code, "--help", cwd=empty, PYTHONPATH=str(unpacked))
    assert said.returncode == 0, said.stderr
    assert "skipscope fit --config" in said.stdout
    assert "main.py" not in said.stdout
    report = run(sys.executable, "-c", code, "report", "nowhere", cwd=empty, PYTHONPATH=str(unpacked))
    assert report.returncode == 2
    assert "expected a run folder" in report.stderr
    code = "import callbacks; print(callbacks.__file__)"
    imported = run(sys.executable, "-c", code, cwd=empty, PYTHONPATH=str(unpacked))
    assert imported.stdout.startswith(str(unpacked)), imported.stderr
    assert not list(empty.iterdir())


@pytest.mark.slow
def test_what_is_imported_is_the_wheel_s_and_the_checkout_is_out_of_sight(installed, tmp_path):
    files = "skipscope.__file__, lightning_app.__file__, callbacks.__file__"
    code = f"import sys, skipscope, lightning_app, callbacks; print({files}, *sys.path[1:], sep='\\n')"
    done = run(installed.with_name("python"), "-c", code, cwd=tmp_path)
    first, second, third, *places = map(Path, done.stdout.splitlines())
    home = next(installed.parents[1].glob("lib/python*/site-packages"))
    assert {file.parents[1] for file in (first, second, third)} == {home}
    assert LIBRARIES in places and ROOT not in places


@pytest.mark.slow
def test_the_wheel_has_every_public_name_and_measures_a_net_in_a_notebook(installed, tmp_path):
    net = "nets.SimplifiedNet(5, residual=True, width=2)"
    code = f"import torch; print(*measure({net}, torch.randn(8, 3, 8, 8), torch.arange(8)))"
    code = f"from skipscope import *; print(*globals()); {code}"
    done = run(installed.with_name("python"), "-c", code, cwd=tmp_path)  # what configs/measure.yaml lists
    said = {"cushion/layer02/median", "weight_mass/all", *skipscope.__all__}
    assert said <= {*done.stdout.split()}, done.stderr


@pytest.mark.slow
def test_the_installed_command_trains_and_reports_in_an_empty_folder(installed, tmp_path):
    words = ["configs/quickstart.yaml" if word.endswith("quickstart.yaml") else word for word in TINY]
    done = run(installed, *words, *LEARNING, "--trainer.max_epochs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / re.search(r"report: (\S+)", done.stdout)[1]).exists()
    listed = run(installed, "reproduce", "--list", "yu-tomasi", cwd=tmp_path)
    assert listed.stdout.count("not run") > 8, listed.stderr


@pytest.mark.slow
def test_a_package_that_was_installed_over_ours_is_noticed(installed, tmp_path):
    (ours,) = installed.parents[1].glob("lib/python*/site-packages/lightning_app/__init__.py")
    text = ours.read_text()
    try:
        ours.write_text("__version__ = '2.2'\n")
        done = run(installed, "--help", cwd=tmp_path)
    finally:
        ours.write_text(text)
    assert done.returncode == 2
    assert f"{ours} was overwritten by another package" in done.stderr


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(tmp_path, given, spins):
    said = "atexit.register(lambda: print(os.environ.get('GOMP_SPINCOUNT')))"
    code = f"import atexit, os, skipscope; {said}; skipscope.main()"
    done = run(sys.executable, "-c", code, "--help", cwd=tmp_path, PYTHONPATH=str(ROOT), **given)
    assert done.stdout.splitlines()[-1] == str(spins)


def test_torch_is_imported_after_that():
    code = "import sys, skipscope; sys.exit('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=ROOT).returncode == 0
