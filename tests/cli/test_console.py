"""Tables: ruled on a terminal, plain in a pipe, and never a word or a number lost."""

import re
import sys
from pathlib import Path

import pytest

from lightning_app import cli
from lightning_app.cli.console import is_terminal, table, table_text
from lightning_app.common.answer import answering
from lightning_app.common.signals import stopping
from tests.helpers import on_terminal

HEAD = ["net", "test error", "what"]
ROWS = [["[red]plain[/red]", "0.25 ± 0.01", "words " * 30], ["residual", "1e-07", "-"]]
CALL = f"from lightning_app.cli.console import table; table('[b]run', {HEAD}, {ROWS})"
STYLE = re.compile(r"\x1b\[[\d;]*m")


def test_plain_is_a_line_a_row_numbers_flush_right_and_nothing_else(capsys):
    table("run", HEAD, ROWS)
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title == "run"
    assert head == "net                test error  what"
    assert first == f"[red]plain[/red]  0.25 ± 0.01  {' '.join(['words'] * 30)}"
    assert second == "residual                1e-07  -"


@pytest.mark.parametrize("columns", [30, 60, 140])
def test_a_terminal_gets_rules_in_its_width_and_every_word(tmp_path, columns):
    code, said = on_terminal(sys.executable, "-c", CALL, cwd=tmp_path, columns=columns)
    assert code == 0, said
    assert "─" * 20 in said
    assert STYLE.search(said)
    lines = STYLE.sub("", said).splitlines()
    assert lines[0] == "[b]run"
    assert max(map(len, lines)) <= max(
        columns, 42
    )  # never narrower than a name, a number, a word and the space between
    assert sum(line.count("words") for line in lines) == 30
    (row,) = [line for line in lines if "[red]plain[/red]" in line]
    (other,) = [line for line in lines if "residual" in line]
    assert row.index("0.25 ± 0.01") + len("0.25 ± 0.01") == other.index("1e-07") + len("1e-07")


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_style_gets_what_a_pipe_gets(tmp_path, variables):
    code, said = on_terminal(sys.executable, "-c", CALL, cwd=tmp_path, **variables)
    assert code == 0, said
    assert said == table_text("[b]run", HEAD, ROWS) + "\n"


def test_an_empty_no_color_is_none(tmp_path):
    assert "─" in on_terminal(sys.executable, "-c", CALL, cwd=tmp_path, NO_COLOR="")[1]


def test_a_name_cannot_move_the_cursor():
    for width in (None, 80):
        said = table_text("a\rb", ["x"], [["\x1b[2Jgone\n"]], width=width)
        assert "a\\rb" in said
        assert "\\x1b[2Jgone\\n" in said


def test_rows_without_end_and_none_at_all():
    assert len(table_text("", ["n"], ([i] for i in range(500))).splitlines()) == 501
    assert table_text("none", ["a", "b"], []) == "none\na  b"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"expected rows of 2 cells, got \['1'\]"):
        table_text("", ["a", "b"], [["1"]])


def test_the_module_itself_brings_neither_rich_nor_torch(tmp_path):
    code = "import sys, lightning_app.cli.console; sys.exit(any(name in sys.modules for name in ('rich', 'torch')))"
    assert on_terminal(sys.executable, "-c", code, cwd=tmp_path)[0] == 0


def prints(words, *_) -> int:
    with answering(True) as found:
        found["risk"] = 1.0
    print("much" * 10**6 if "much" in words else is_terminal(sys.stdout))
    return 0


def raises(*_) -> int:
    raise OSError(28, "No space left on device", "elsewhere")


@pytest.fixture
def faked(monkeypatch):
    """`compare` and `fit` do what is asked for."""

    def faked(function):
        monkeypatch.setitem(cli.OTHERS, "compare", f"tests.cli.test_console:{function.__name__}")
        monkeypatch.setattr("lightning_app.cli.training.run_training", function)
        monkeypatch.setattr(stopping, "listen", lambda: None)

    return faked


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["--help"], ["fit", "-h"], ["compare"], ["fit"], ["compare", "much"]], ids=" ".join)
def test_output_that_cannot_be_written_is_named(monkeypatch, capsys, faked, words):
    faked(prints)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(words) == 1
    said = "error: cannot write to standard output: No space left on device. Free space, or redirect the output.\n"
    assert capsys.readouterr().err == said


def test_another_file_that_cannot_be_written_is_not_taken_for_the_output(capsys, faked):
    faked(raises)
    assert cli.main(["compare"]) == 2
    assert "elsewhere" in capsys.readouterr().err
    with pytest.raises(OSError, match="elsewhere"):
        cli.main(["fit"])


@pytest.mark.parametrize("words", [["--help"], ["compare"], ["fit"]], ids=" ".join)
def test_closed_output_is_no_error(monkeypatch, faked, words):
    faked(prints)
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(words) == 0
