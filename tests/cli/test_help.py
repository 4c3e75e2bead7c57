"""--help: examples first, and every one of them works; options that are named exist."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lightning_app.cli import OTHERS, TRAINING, main
from lightning_app.cli.help import BRIEF, overview
from lightning_app.cli.training import HELP
from tests.helpers import built, command

CHECKPOINT = Path("runs/cifar10/res20/checkpoints/last.ckpt")


def examples(text: str) -> list[list[str]]:
    """The words behind ``python main.py`` of every example, less what is said about it."""
    lines = re.findall(r"^  python main\.py (.*?)(?:  .*)?$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def said(capsys, *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


ALL = [words for text in (overview(), *(BRIEF[name][1] for name in BRIEF)) for words in examples(text)]
TABLE = re.findall(r"^  (\w+) .*?  +(\1 .*?)(?: \(.*)?$", overview(), re.MULTILINE)
ALL += [shlex.split(line) for _, line in TABLE]


def test_the_overview_names_every_command_after_examples():
    head, _, rest = overview().partition("\ncommands:\n")
    assert 2 <= len(examples(head)) <= 4
    assert re.findall(r"^  (\w+) ", rest, re.MULTILINE) == [*TRAINING, *OTHERS] == [name for name, _ in TABLE]


@pytest.mark.parametrize("name", TRAINING)
def test_short_help_is_examples_then_options(name, capsys):
    usage, what, shown, options = said(capsys, name, "-h").split("\n\n")
    assert usage.startswith(f"usage: python main.py {name} ")
    assert what
    assert 2 <= len(examples(shown)) <= 4
    assert all(words[0] == name for words in examples(shown))
    assert len(options.splitlines()) >= 5


@pytest.mark.parametrize("name", OTHERS)
def test_help_of_the_others_has_examples_before_options(name, capsys):
    text = said(capsys, name, "--help")
    assert text.index("examples:") < text.index("options:")
    assert len(examples(text)) >= 2


@pytest.mark.slow
def test_long_help_has_the_short_one_on_top_and_lists_our_classes_only(tmp_path):
    long = command("fit", "--help", cwd=tmp_path)
    assert long.returncode == 0, long.stderr
    short = command("fit", "-h", cwd=tmp_path).stdout
    assert long.stdout.startswith(short)
    assert len(long.stdout.splitlines()) < 700
    shown = re.search(r"known classes: ([\w, ]*CifarResNet[\w, ]*)", re.sub(r"\s+", " ", long.stdout))[1].split(", ")
    assert {"SimplifiedNet", "CifarResNet", "PreactResNet", "ShortcutNet", "ResidualMLP"} <= {*shown}
    assert "torch.ao." not in long.stdout


@pytest.mark.parametrize("words", [words for words in ALL if words[0] in TRAINING], ids=shlex.join)
def test_examples_parse_and_build(words, tmp_path):
    """In a folder with the files that they name."""
    (tmp_path / CHECKPOINT.parent).mkdir(parents=True)
    for file in (CHECKPOINT, "plain.ckpt", "resnet18.pth"):
        torch.save({}, tmp_path / file)
    config = {"model": {"net": {"class_path": "SimplifiedNet", "init_args": {"depth": 20}}}}
    (tmp_path / CHECKPOINT.parents[1] / "config.yaml").write_text(yaml.safe_dump(config))
    assert built(*words, cwd=tmp_path)


@pytest.mark.parametrize("name", TRAINING)
def test_the_options_that_matter_are_options(name, tmp_path):
    parser = built(name, "--model.net", "SimplifiedNet", cwd=tmp_path).parser._subcommands_action._name_parser_map[name]
    named = re.findall(r"^  --([\w.]+?)(?:\+=CLASS)? ", BRIEF[name][2], re.MULTILINE)
    arguments_of_classes = {
        "data.root",
        "data.batch_size",
        "model.net.depth",
        "model.optimizer.lr",
    }  # see the next test
    known = (
        {action.dest for action in parser._actions} | {"print_config", "until"} | arguments_of_classes
    )  # --until is read before the parser
    assert set(named) <= known
    helps = {action.dest: action.help for action in parser._actions}
    assert all(helps[dest] == HELP[dest] for dest in {*HELP} & {*helps})
    assert {*HELP} - {*helps} <= {"verbose", "weights_only"}
    assert not [group.title for group in parser.groups.values() if ". " in group.title]


def test_options_of_classes_are_options(tmp_path):
    words = "--data Digits --data.root x --data.batch_size 3 --model.net SimplifiedNet --model.net.depth 5"
    made = built("fit", *shlex.split(words), "--model.optimizer.lr", "0.5", cwd=tmp_path)
    assert made.datamodule.batch_size == 3


@pytest.mark.parametrize("name", OTHERS)
def test_examples_of_the_others_parse(name, capsys, parsed):
    shown = [words for words in [*examples(said(capsys, name, "--help")), *ALL] if words[0] == name]
    assert len(shown) >= 2
    for words in shown:
        parsed(words)


def test_help_says_the_name_it_was_called_by(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/skipscope"])
    for words in (("--help",), ("fit", "-h"), ("report", "--help")):
        text = said(capsys, *words)
        assert "main.py" not in text
        assert "  skipscope " in text
