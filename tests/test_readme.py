"""README and the pages of docs/: their commands, options, examples, links and numbers are real.

The fresh installation itself is checked by .ci/run, and that the pages make a site by tests/test_docs.py.
"""

import csv
import importlib.util
import re
import shlex
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from markdown.extensions.toc import slugify

from lightning_app.cli import OTHERS, TRAINING
from lightning_app.cli.help import overview
from lightning_app.cli.until import OPTION as UNTIL
from lightning_app.cli.until import options_of
from lightning_app.papers import PAPERS, find, paper
from lightning_app.papers.records import RECORD, counts_of, read_record
from lightning_app.papers.yu_tomasi.table_1 import TABLE_1_IN_PRINT
from lightning_app.runs import Row, RunFolder
from tests.helpers import ROOT, TINY, built, command

RULES = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
PAGES = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in FILES}
TEXTS = {name: re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE) for name, text in PAGES.items()}
GENERATED = (
    "measures/",
    "functions/",
    "papers/",
    "notebooks/",
    "registration.md",
    "cifar10.html",
    "cifar10-",  # other reports of runs
)  # MkDocs checks these
LONG = ("docs/log.md", "docs/speed.md")  # grows with every decision; generated
QUICKSTART = ROOT / "docs" / "results" / "2026-11-23-quickstart-run.txt"
SEEDS = ROOT / "docs" / "results" / "2026-11-29-quickstart-third-test.csv"


def blocks(language: str) -> list:
    """Code of a language, on all pages: (code), with its page as the test's name."""
    code = re.compile(rf"^```(?:{language})\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [pytest.param(found, id=name) for name, text in PAGES.items() for found in code.findall(text)]


def commands() -> list[str]:
    """One a line, without comments, each once."""
    lines = "\n".join(block.values[0].replace("\\\n", " ") for block in blocks("sh|bash")).splitlines()
    return list(
        dict.fromkeys(line for line in (shlex.join(shlex.split(line, comments=True)) for line in lines) if line)
    )


def inline(start: str) -> list[str]:
    """Code within sentences that begins so."""
    words = re.compile(rf"(?<!`)`({start}[^`]*)`(?!`)")
    return sorted({" ".join(found.split()) for text in TEXTS.values() for found in words.findall(text)})


def paragraphs(text: str) -> list[str]:
    """Paragraphs, and each item of a list and row of a table, without code."""
    return [part.strip() for part in re.split(r"\n\s*\n|\n(?=[|-] ?)", text) if part.strip()]


COMMANDS = commands()
OURS = [shlex.split(line)[2:] for line in COMMANDS if line.startswith("python main.py ")]


def is_of_a_run(words: list[str]) -> bool:
    """Does it measure a checkpoint whose run has to be there?"""
    return words[0] == "measure" and "--ckpt_path" in words


def test_the_readme_has_the_two_commands_and_all_of_ours():
    made = [line.split()[1] for line in COMMANDS if line.startswith("make ")]
    assert {"quickstart", "test"} <= set(made) <= set(RULES)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    shown = re.findall(r"^python main\.py (\w+)", README, re.MULTILINE)
    assert set(shown) == {*TRAINING, *OTHERS} == set(re.findall(r"^  (\w+)  +\S", overview(), re.MULTILINE))


@pytest.mark.parametrize(
    "words", [each for each in OURS if each[0] in TRAINING and not is_of_a_run(each)], ids=" ".join
)
def test_commands_that_train_or_measure_are_built(words, tmp_path):
    assert built(*(options_of(words)[0] if UNTIL in words else words), cwd=tmp_path)


@pytest.mark.parametrize("words", [each for each in OURS if each[0] not in TRAINING], ids=" ".join)
def test_other_commands_are_parsed(words, parsed):
    options = parsed(words)
    assert all(find(name) for name in getattr(options, "artefacts", ()))


@pytest.mark.parametrize("line", [line for line in COMMANDS if not line.startswith(("python main.py ", "make "))])
def test_remaining_commands_name_what_exists(line):
    words = [word for word in shlex.split(line) if not re.match(r"\w+=", word)]
    if words[:2] == [".venv/bin/python", "-m"] or words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), words[2]
    else:
        assert words[0] == "sbatch"
    assert all((ROOT / word).exists() for word in words if word.startswith(("deploy/", "configs/", "tests/")))


def test_commands_within_sentences_exist():
    assert {words.split()[1] for words in inline("make ") if words != "make wheel"} <= set(RULES)
    assert {words.split()[2] for words in inline("python main.py ")} <= {*TRAINING, *OTHERS, "COMMAND", "--help"}
    assert all(importlib.util.find_spec(words.split()[2]) for words in inline("python -m ") if "NAME" not in words)


def test_options_within_sentences_exist(tmp_path):
    """Those of the small commands by name; the others, with a value, all in one command of `fit`."""
    folders = ("lightning_app", "benchmarks")
    code = "\n".join(file.read_text(encoding="utf-8") for each in folders for file in (ROOT / each).rglob("*.py"))
    words = []
    for name, *value in (option.replace("=", " ", 1).split() for option in inline("--")):
        if f'"{name}"' in code or name in (word for words in OURS for word in words):
            continue
        assert value, f"{name} is no option of a command on these pages"
        words += [name, *value]
    assert built("fit", "--config", "configs/quickstart.yaml", *words, cwd=tmp_path)


@pytest.mark.slow
def test_the_quickstart_and_what_is_made_of_it(tmp_path):
    """The quickstart's own command at a size of seconds, then what the pages do with it."""
    assert command(*TINY, cwd=tmp_path).returncode == 0
    lines = [words for words in OURS if "runs/digits/quickstart" in " ".join(words)]
    assert {words[0] for words in lines} >= {"report", "measure"}
    for words in lines:
        settled = 4 if words[0] == "compare" else 0  # one seed settles nothing
        assert command(*words, cwd=tmp_path, page=True).returncode == settled
    for page in ("digits/quickstart", "measured/quickstart-last"):
        assert (tmp_path / "runs" / page / "report.html").exists()


@pytest.mark.parametrize("block", blocks("yaml"))
def test_yaml_examples_parse(block):
    assert yaml.safe_load(block)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_examples_run(block, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tests" / "data")  # my_project.py
    run = RunFolder(Path("runs/cifar10/pair20"))
    for epoch in (0, 1):
        for net in ("plain", "residual"):
            run.append(Row(net, epoch, 0, name, 0.1) for name in ("test/error", "cushion/layer10/median"))
        run.save_arrays(epoch, "cushion", {"plain/cushion/layer10/samples": np.full(3, 0.1)})
    exec(compile(block, "example", "exec"), {})


def test_the_example_for_a_project_of_ones_own_has_15_lines():
    for name in ("README.md", "docs/api.md"):
        example = re.search(r"```python\n(.*?)```", PAGES[name], re.DOTALL)[1]
        assert "my_project" in example and len([line for line in example.splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("name", [*PAGES, "docs/results/README.md", "deploy/README.md"])
def test_links_pictures_and_anchors_resolve(name):
    for target in re.findall(r"\]\((?!http)([^)]+)\)", TEXTS.get(name) or (ROOT / name).read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if name.startswith("docs/") and path.startswith(GENERATED):
            continue
        file = ((ROOT / name).parent / path) if path else ROOT / name
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in map(anchor_of, headings), target


def anchor_of(heading: str) -> str:
    """As MkDocs makes it, and GitHub, which differs for what is refused here.

    >>> anchor_of("Where to add what")
    'where-to-add-what'
    """
    github = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
    return github if github == slugify(heading, "-") else ""


@pytest.mark.parametrize("name", [name for name in PAGES if name not in (*LONG, "CHANGELOG.md")])
def test_a_page_is_read_in_minutes(name):
    assert len(PAGES[name].splitlines()) <= 200 and len(PAGES[name].encode()) <= 14_000


@pytest.mark.parametrize("name", [name for name in PAGES if name not in LONG])
def test_sentences_are_short(name):
    """The median of a page, tables and code left out."""
    text = [part for part in paragraphs(TEXTS[name]) if not part.startswith(("|", "#", ":::", "!"))]
    lengths = [len(sentence.split()) for part in text for sentence in re.split(r"(?<=[.!?])\s+", part)]
    assert statistics.median(lengths) <= 20


def test_every_page_is_in_the_list_of_pages():
    listed = set(re.findall(r"\]\(([\w-]+\.md)", PAGES["docs/index.md"]))
    assert {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")} - {"index.md"} <= listed


def test_every_file_of_measured_figures_has_its_command_listed():
    listed = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{file.name}`" in listed for file in (ROOT / "docs" / "results").glob("20*"))


MEASURED = re.compile(
    r"(?<![\w.])\d+\.\d+|\d+ of \d+|\d+ (?:s|ms|minutes?|hours?|MB|GB|%)(?!\w)|\d+ (?:re|not re)produced"
)
SOURCE = re.compile(r"\]\((?:docs|results)/[^)]+\)")


@pytest.mark.parametrize("part", paragraphs(TEXTS["README.md"]), ids=lambda part: part[:40])
def test_a_number_or_picture_of_the_readme_has_its_source_beside_it(part):
    """Whatever looks measured: decimals, shares, times, sizes, counts of verdicts. Versions are not."""
    said = re.sub(r"Python [\d.]+(?: to [\d.]+)?|\[Apache-[\d.]+\]|\]\([^)]*\)|`[^`]*`", "", part)
    if MEASURED.search(said):
        assert SOURCE.search(part), part
    if part.startswith("!["):
        parts = paragraphs(TEXTS["README.md"])
        assert "docs/results/" in parts[parts.index(part) + 1]


def test_the_check_of_sources_finds_what_looks_measured():
    assert all(MEASURED.search(text) for text in ("error 0.413", "13 of 13 seeds", "took 77 s", "8 reproduced"))
    assert not any(MEASURED.search(text) for text in ("44 layers", "layer 10", "v1", "PyTorch brings several GB"))


def test_the_quickstart_prints_what_the_readme_says():
    printed = QUICKSTART.read_text(encoding="utf-8")
    (shown,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert " ".join(shown.split()) in " ".join(printed.split())
    said = re.search(
        r"quickstart took (\d+) s .*took (\d+) minutes to install and (\d+) to run", " ".join(README.split())
    )
    times = re.search(
        r"to end: ([\d.]+) s.*installing took\W+([\d.]+) minutes.*this command ([\d.]+) min", printed, re.DOTALL
    )
    assert [*map(int, said.groups())] == [round(float(each)) for each in times.groups()]


def test_the_nets_on_cifar_10_are_as_their_logs_say():
    """README's errors, and each mean and standard deviation of the table in First results."""
    runs = ROOT / "results/yu-tomasi/reduced/runs"
    kept = {depth: [*runs.glob(f"depth{depth}~*")] for depth in ("20", "32")}
    kept |= {"44": [*runs.glob("plain44~*"), *runs.glob("residual44~*")]}  # a net a run
    logs = {depth: [RunFolder(path).log() for path in sorted(paths)] for depth, paths in kept.items()}
    names = [
        "train/risk",
        "test/error",
        *(f"cushion/layer10/median{ending}" for ending in ("", "_transferred", "_branch")),
    ]

    def seeds(depth: str, arm: str, epoch: int, name: str) -> list[float]:
        found = [log[(log["epoch"] == epoch) & (log["name"] == name)] for log in logs[depth]]
        each = [rows.loc[rows["member"].str.startswith(arm), "value"] for rows in found]
        return [float(values.iloc[0]) for values in each if len(values)]

    said = re.search(
        r"a test error of ([\d.]+) with skips and ([\d.]+) without at depth 20, ([\d.]+) and ([\d.]+) at depth 32",
        " ".join(README.split()),
    )
    errors = [seeds(depth, arm, 30, "test/error") for depth in ("20", "32") for arm in ("residual", "plain")]
    assert [*said.groups()] == [f"{statistics.fmean(each):.2f}" for each in errors]
    rows = re.findall(
        r"^\| (plain|residual), (\d+) layers, (before|after)(.*?) \| (.*) \|$",
        PAGES["docs/first-results.md"],
        re.MULTILINE,
    )
    assert len(rows) == 8
    for arm, depth, when, more, numbers in rows:
        for name, shown in zip(names, numbers.split(" | "), strict=True):
            if shown != "the same":
                values = seeds(depth, arm, 0 if when == "before" else 30, name)
                places = len(shown.split(" ")[0].partition(".")[2])
                expected = [spread(values) for spread in (statistics.fmean, statistics.stdev)[: 1 + shown.count("±")]]
                assert [f"{each:.{places}f}" for each in expected] == shown.split(" ± ")
                assert len(values) == {"one seed": 1, "two seeds": 2}.get(more.rpartition(", ")[2], 3)


def test_depths_20_and_32_in_full_are_as_their_logs_the_record_and_the_paper_say():
    runs = ROOT / "results/yu-tomasi/runs"
    found = [RunFolder(path).log().assign(depth=path.name[5:7]) for path in sorted(runs.glob("depth[23][02]~*"))]
    logs = pd.concat(found, ignore_index=True)
    logs = logs[logs["epoch"] == 200].assign(arm=logs["member"].str.partition("-")[0])
    ours = {key: [*rows["value"]] for key, rows in logs.groupby(["depth", "arm", "name"])}
    judged = read_record(ROOT / "results/yu-tomasi/table-1")["rows"]
    ratios = {row["quantity"]: row["readings"][0]["mean"] for row in judged}
    cushions = [f"cushion/layer10/median{ending}" for ending in ("", "_transferred", "_branch")]
    said = PAGES["docs/first-results.md"].partition("## Depths 20 and 32 in full")[2].partition("\n## ")[0]
    rows = re.findall(
        r"^\| (plain|residual)(?:, (32) layers)? \| (.+?) \((\S+)\) \| (.+?) \((\S+)\) \| (\d+) \| (.*) \|$",
        said,
        re.MULTILINE,
    )
    assert [row[:2] for row in rows] == [("plain", ""), ("residual", ""), ("plain", "32"), ("residual", "32")]
    for arm, of, risk, risk_in_print, error, error_in_print, ratio, shown in rows:
        depth = of or "20"
        texts = zip(["train/risk", "test/error", *cushions], [risk, error, *shown.split(" | ")], strict=True)
        for name, text in texts:
            values, places = ours[depth, arm, name], len(text.partition(" ")[0].partition(".")[2])
            assert len(values) == 3
            if text == "the same":
                assert arm == "plain" and name in cushions[1:]  # a plain net has no identity to count
            else:
                assert text == f"{statistics.fmean(values):.{places}f} ± {statistics.stdev(values):.{places}f}"
        assert ratio == f"{ratios[f'L / (C - L), {arm}, depth {depth}']:.0f}"
        assert [float(risk_in_print), float(error_in_print)] == [
            round(TABLE_1_IN_PRINT[arm, int(depth)][place], 4) for place in (0, 2)
        ]
    errors = [statistics.fmean(ours["20", arm, "test/error"]) for arm in ("plain", "residual")]
    readme = " ".join(README.split())
    assert f"test errors of {errors[0]:.4f} plain and {errors[1]:.4f} residual" in readme
    of_32 = [statistics.fmean(ours["32", arm, "test/error"]) for arm in ("residual", "plain")]
    assert f"At depth 32 these errors are {of_32[1]:.4f} and {of_32[0]:.4f}" in readme
    assert (
        f"after 200 epochs {errors[1]:.3f} and {errors[0]:.3f} at depth 20, {of_32[0]:.3f} and {of_32[1]:.3f} at depth 32"
        in readme
    )


def test_the_page_on_loss_surfaces_has_the_numbers_of_its_review():
    rows = csv.DictReader((ROOT / "docs/results/2026-11-30-loss-surface-review.csv").read_text().splitlines())
    numbers = {
        tuple(re.findall(r"depth (\d+), r = ([\d.]+)", row["attempt"])[0]) + (row["quantity"],): row for row in rows
    }
    words = {"as written": "written", "identity counted": "transferred"}
    lines = re.findall(r"^\| depth (\d+), ([\w ]+) \| (.*) \|$", PAGES["docs/loss-surface.md"], re.MULTILINE)
    assert len(lines) == 4
    for depth, reading, cells in lines:
        for r, shown in zip(("0.1", "0.25", "0.5", "1"), cells.split(" | "), strict=True):
            ends = [numbers[depth, r, f"{words[reading]}, {end}"]["value"] for end in ("mean", "lowest", "highest")]
            assert shown == "{:.2f} ({:.2f} to {:.2f})".format(*map(float, ends))


def test_the_result_of_the_readme_is_that_of_thirteen_seeds():
    lines = [line for line in SEEDS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    last = [row for row in csv.DictReader(lines) if row["epoch"] == row["epochs"]]
    rows = re.findall(r"^\| \[13 (\w+) nets\]\(\S+ \| \w+ ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README, re.MULTILINE)
    assert [arm for arm, *_ in rows] == ["plain", "residual"]
    for arm, bound, *ends in rows:
        errors = [float(row["test/error"]) for row in last if row["arm"] == arm]
        assert len(errors) == 13
        assert [float(end) for end in ends] == pytest.approx(
            [min(errors), max(errors)], abs=6e-4 if arm != "plain" else 6e-3
        )
        assert all((error > float(bound)) == (arm == "plain") for error in errors)


CLASSES = ("formula", "initialisation", "trained")


@pytest.mark.parametrize("key", PAPERS)
def test_the_readme_counts_verdicts_as_the_records_do(key):
    """What fails here is mended by the line that it expected."""
    folders = {artefact.key: ROOT / "results" / key / artefact.key for artefact in paper(key).artefacts}
    judged = [folder for folder in folders.values() if (folder / RECORD).exists()]
    counts = counts_of(row for folder in judged for row in read_record(folder)["rows"])
    cells = [", ".join(f"{n} {words}" for words, n in counts.get(about, {}).items()) for about in CLASSES]
    missing = ", ".join(name for name, folder in folders.items() if folder not in judged)
    expected = " | ".join(cell or "-" for cell in [*cells, missing])
    rows = re.findall(r"^\| \[(.*?)\]\S+ \| (.*) \|$", README, re.MULTILINE)
    row = dict(rows)[paper(key).title.split(",")[0]]
    assert row == expected.replace(" that the paper does not give", "")


def test_the_verdicts_of_the_papers_starts_alone_are_as_the_records_say():
    own = re.compile(r"(?!.*Torch7)(?!.*N\(0, (1/4n|2/n)\))")
    alone = r"With these two alone, (\d+) more\srows would be \*reproduced\* and (\d+) more"
    said = re.search(alone, PAGES["docs/reproducing.md"])
    rows = [
        row
        for key in ("fig-1d", "fig-1e", "ensemble")
        for row in read_record(ROOT / "results" / "littwin-wolf" / key)["rows"]
        if row["verdict"] == "depends on a setting"
    ]
    held = [
        [each["held"] for each in row["readings"] if each["judged"] and own.match(each["convention"])] for row in rows
    ]
    assert [*map(int, said.groups())] == [sum(map(all, held)), sum(not any(each) for each in held)]


def test_the_goals_of_speed_are_counted_as_on_their_page():
    (met,) = re.findall(r"\d+ of \d+ goals", README)
    assert f"{met} are met." in PAGES["docs/speed.md"]


def test_the_minutes_of_computing_all_again_are_those_of_the_records():
    """Seconds of each computation and run that a record rests on; what several artefacts rest on counts once."""
    rows = re.findall(
        r"^\| `([\w-]+)`(?: (fig-\w+) to (fig-\w+)|, all .*?)? \| (\d+) \|", PAGES["docs/evidence.md"], re.MULTILINE
    )
    assert len(rows) == 6
    for key, first, last, minutes in rows:
        records = {file.parent.name: read_record(file.parent) for file in (ROOT / "results" / key).glob(f"*/{RECORD}")}
        chosen = [record for name, record in records.items() if not first or first <= name <= last]
        seconds = {part["folder"]: part["seconds"] for record in chosen for part in record["evidence"]}
        assert int(minutes) == round(sum(seconds.values()) / 60), (key, first, last)
