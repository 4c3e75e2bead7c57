"""What can be said here of other systems: encodings are anybody's, and a GPU may have no float64."""

import ast
import os
import re
import subprocess
import sys

import torch
from torch import nn

import skipscope
from callbacks import LayerCushion, context
from lightning_app.common import isolation
from tests.helpers import ROOT

FOLDERS = ("lightning_app", "callbacks", "skipscope", "benchmarks")
FILES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]


def without_encoding(node: ast.AST) -> bool:
    """Is it a call that reads or writes text in the system's own encoding?"""
    if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
        return False
    method = isinstance(node.func, ast.Attribute)
    name = node.func.attr if method else getattr(node.func, "id", "")
    modes = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    if name in ("read_text", "write_text"):
        return method  # the function `read_text` is ours, of common.safe_io
    opens = name == "fdopen" or (name == "open" and (not method or any(re.fullmatch("[rwax]", one) for one in modes)))
    return opens and not any("b" in mode for mode in modes)


def test_text_files_are_read_and_written_as_utf_8():
    """A system's own encoding may be another."""
    trees = {file: ast.walk(ast.parse(file.read_text(encoding="utf-8"))) for file in FILES}
    assert not [f"{file}:{node.lineno}" for file, nodes in trees.items() for node in nodes if without_encoding(node)]
    wrong = ("open(x)", "x.open('w')", "os.fdopen(x, 'r+')", "x.read_text()", "x.write_text(y)")
    assert all(without_encoding(ast.parse(each, mode="eval").body) for each in wrong)


def test_a_pipe_of_another_encoding_gets_what_it_can_show(tmp_path):
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"}
    call = [sys.executable, "-m", "skipscope", "reproduce", "--list", "littwin-wolf"]
    done = subprocess.run(call, cwd=tmp_path, env=variables, capture_output=True)
    assert done.returncode == 0 and b"|?| of BatchNorm grows" in done.stdout, done.stderr


def test_nets_on_a_device_without_float64_are_measured_on_the_cpu(monkeypatch, caplog):
    """The CPU stands in for that device: the copy is then on the same, and another net all the same."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).train()
    images, labels = torch.randn(6, 1, 4, 4), torch.arange(6) % 3
    wanted = skipscope.measure(net, images, labels, LayerCushion())
    monkeypatch.setattr(isolation, "WITHOUT_FLOAT64", ("cpu",))
    context._warn_once.cache_clear()
    made = [skipscope.MeasureContext(net, [(images, labels)]) for _ in range(2)]
    assert all(one.net is not net and one.net[0].weight.data_ptr() != net[0].weight.data_ptr() for one in made)
    assert skipscope.measure(net, images, labels, LayerCushion()) == wanted
    assert net.training
    assert [record.getMessage() for record in caplog.records].count(
        "the device cpu has no float64: copies of the nets are measured on the cpu."
    ) == 1


def test_which_device_has_no_float64():
    assert isolation.with_float64(torch.device("mps")) == torch.device("cpu")
    assert isolation.with_float64(torch.device("cuda", 1)) == torch.device("cuda", 1)
