"""Freed memory stays in the process, unless the user says how to allocate."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_app import cli
from tests.helpers import ROOT

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SMALL_PAGES = os.sysconf("SC_PAGE_SIZE") == 4096 and not (HUGE.exists() and "[always]" in HUGE.read_text())
pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's"),
    pytest.mark.skipif(not SMALL_PAGES, reason="counts page faults, which are few where pages are large"),
]

TENSORS = "import torch; made = lambda: torch.ones(2_000_000)"
BYTES = "made = lambda: bytearray(8_000_000)"  # of the same allocator, and there at once
STEPS = """
import resource
from lightning_app.common.processes import keep_freed_memory
print(keep_freed_memory())

def faults() -> int:  # of a step that takes 80 MB in pieces, the last taken given back first
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [made() for _ in range(10)]
    while pieces:
        pieces.pop()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(*(faults() for _ in range(5)))
"""


def stepped(what: str, **variables: str) -> tuple[str, list[int]]:
    """What the function said, and the page faults of five equal steps."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    environment = clean | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    call = [sys.executable, "-c", f"{what}\n{STEPS}"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=True, timeout=120)
    kept, faults = done.stdout.splitlines()
    return kept, [*map(int, faults.split())]


def test_later_steps_find_the_memory_of_the_first():
    kept, faults = stepped(TENSORS)
    assert kept == "True"
    assert faults[0] > 1000
    # One piece moves late at times; without the setting each step has as many faults as the first.
    assert sum(faults[2:]) < faults[0] / 2


@pytest.mark.parametrize(
    "variables",
    [{"MALLOC_MMAP_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}],
    ids=lambda each: next(iter(each)),
)
def test_the_users_word_stands(variables):
    kept, faults = stepped(BYTES, **variables)
    assert kept == "False"
    assert min(faults) > 1000


def test_training_asks_for_it_before_it_imports_anything(monkeypatch):
    called = []
    monkeypatch.setattr(cli.stopping, "listen", lambda: None)
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: called.append("keep"))
    monkeypatch.setattr(cli, "_run", lambda argv, answer: called.append(argv[0]) or 0)
    assert cli.main(["fit"]) == 0
    assert called == ["keep", "fit"]
