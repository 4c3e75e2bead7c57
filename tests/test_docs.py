"""The documentation builds without warnings and without network, and its tables of keys are what is logged."""

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import callbacks
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import ROOT, arm, built, classifier, digits, fit
from tests.report.chromium import needs_chromium, tab

sys.path.insert(0, str(ROOT / "docs"))  # scripts beside the pages, no package
from comments import comment_of, fenced, fields, linked
from docstrings import EVERY_RUN, SECTIONS, SHOWING, YOUR_OWN, Documented, documented
from generate import RUN_PAGES, module_stems, page_of, use

EVERY = documented()
MEASURES = [one for one in EVERY if one.name not in EVERY_RUN]
LOGGING = [one for one in EVERY if one.name not in SHOWING]


def name_of(one: Documented) -> str:
    return one.name


def test_every_exported_callback_is_documented():
    assert {*(one.name for one in EVERY), *YOUR_OWN} == {*callbacks.__all__}


@pytest.mark.parametrize("one", LOGGING, ids=name_of)
def test_no_section_is_missing_or_empty(one):
    assert list(one.sections) == list(SECTIONS)
    assert all(text.strip() for text in one.sections.values())
    assert one.summary.endswith(".") and one.rows


@pytest.mark.parametrize("one", LOGGING, ids=name_of)
def test_every_row_has_three_cells_and_every_field_a_comment(one):
    lines = [line for line in one.sections["Keys"].splitlines() if line.startswith("|")]
    assert {line.count(" | ") for line in lines if "---" not in line} == {2}
    assert all(row.keys and row.meaning for row in one.rows)
    assert all(row.records for row in one.rows if any("<field>" in key for key in row.keys))
    assert all(comment_of(field) for record in one.records for field in fields(record))


@pytest.mark.parametrize("one", LOGGING, ids=name_of)
def test_every_option_is_explained_as_the_callback_takes_it(one):
    assert all(option.meaning for option in one.options)
    names = vars(sys.modules[getattr(callbacks, one.name).__module__])  # a default may be a constant of the module
    given = {option.name: eval(option.default, names) for option in one.options}
    getattr(callbacks, one.name)(**given)


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> set[str]:
    """Every key of two small banks in which all is logged that can be: twins, BatchNorm, a validation split, averages."""
    small = {
        "HessianSpectrum": {"parts": True, "samples": 8, "steps": 4},
        "InterlayerCushion": {"samples": 8},
        "LossSurface": {"every_n_epochs": 1, "samples": 8, "radii": [0.1], "rays": 2},
        "NoiseStability": {"every_n_epochs": 1, "samples": 8},
    }
    twins = {"residual": arm(True), "plain": Arm(twin_of="residual", decay_towards="zero")}  # wrong, so that they part
    watched = [getattr(callbacks, one.name)(**small.get(one.name, {})) for one in LOGGING]
    normalised = {"normalised": Arm(net=lambda: CifarResNet(8, width=4))}
    options = [callbacks.BnLambda(), callbacks.BnLambda(norm="rms"), callbacks.BnLambda(norm="filter")]
    options += [callbacks.DrivingForce(), callbacks.InterlayerCushion(bn_modes="batch1", samples=8)]
    return keys_of(twins, watched, tmp_path_factory) | keys_of(normalised, options, tmp_path_factory)


def keys_of(arms: dict[str, Arm], callbacks_: list, folders) -> set[str]:
    """Numbers, histograms and arrays of all epochs, by key."""
    run = RunFolder(folders.mktemp("keys"))
    fit(
        classifier(arms, weight_decay=0.1, ema_decay=0.9),
        data=digits(val_size=20),
        callbacks=callbacks_,
        logger=[RunLogger(run.path)],
    )
    keys: set[str] = set()
    for file in run.path.glob("measurements/*/*.npz"):
        with np.load(file) as arrays:
            keys |= {re.sub(r"/(counts|edges|outside)$", "", key.partition("/")[2]) for key in arrays}
    return set(run.log()["name"]) | keys


def pattern(key: str) -> re.Pattern:
    """What a documented key stands for.

    >>> bool(pattern("noise[_<scale>]/layer10/response_<s>").fullmatch("noise_absolute/layer02/response_0.1"))
    True
    >>> bool(pattern("noise/response_<s>").fullmatch("noise/response_0.1_more/x"))
    False
    """
    text = re.escape(key).replace(r"\[", "(?:").replace(r"\]", ")?")
    text = re.sub(r"<(s|i|r)>", r"[\\d.]+", text)
    text = re.sub(r"<\w+>", r"[a-z]+\\d*", text)
    text = re.sub(r"layer\d\d(?!_at|_after)", r"layer\\d\\d(?:_\\d)?", text)
    return re.compile(re.sub(r"block\d\d", r"block\\d\\d", text))


def expanded(one: Documented) -> list[str]:
    return [key for row in one.rows for key, _ in row.expanded()]


@pytest.mark.slow
def test_every_logged_key_is_documented(logged):
    patterns = [pattern(key) for one in EVERY for key in expanded(one)]
    assert not {key for key in logged if not any(each.fullmatch(key) for each in patterns)}


@pytest.mark.slow
@pytest.mark.parametrize("one", LOGGING, ids=name_of)
def test_every_documented_key_is_logged(one, logged):
    assert not {key for key in expanded(one) if not any(pattern(key).fullmatch(name) for name in logged)}


@pytest.mark.parametrize("one", MEASURES, ids=name_of)
def test_the_example_in_python_runs(one):
    (python,) = re.findall(r"```python\n(.*?)```", use(one), re.DOTALL)
    names = {}
    exec(python, names)
    assert one.name in {type(callback).__name__ for callback in names["trainer"].callbacks}


@pytest.mark.parametrize("one", MEASURES, ids=name_of)
def test_the_example_in_yaml_is_built(one, tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", use(one), re.DOTALL)
    (tmp_path / "example.yaml").write_text(example)
    made = built("fit", "--config", ROOT / "configs" / "res20.yaml", "--config", "example.yaml", cwd=tmp_path)
    assert [type(callback).__name__ for callback in made.trainer.callbacks].count(one.name) == 1


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built by the command of `make docs`, into another folder."""
    (line,) = re.findall(r"-m (mkdocs build.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    folder = tmp_path_factory.mktemp("site")
    call = [sys.executable, "-m", *line.split(), "--site-dir", str(folder)]
    built = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("one", MEASURES, ids=name_of)
def test_a_measure_has_a_page_with_everything(one, site):
    html = (site / "measures" / page_of(one)).with_suffix(".html").read_text()
    headings = re.findall(r"<h2[^>]*>([^<]*)", html)
    assert headings == [*SECTIONS.values(), "Options", "Use", "Functions behind it"]
    bodies = re.split(r"<h2", html.partition('role="main"')[2])[1:]
    assert all(len(re.sub(r"<[^>]*>", "", body.partition("</h2>")[2]).strip()) > 20 for body in bodies)
    assert f'href="{page_of(one).replace(".md", ".html")}' in (site / "measures" / "index.html").read_text()


@pytest.mark.slow
def test_every_module_of_measures_has_a_page(site):
    assert {file.stem for file in (site / "functions").glob("*.html")} == set(module_stems())


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_PAGES)
def test_runs_on_cifar_10_are_pages_to_try(site, name):
    page = (site / name).read_text()
    assert "<main data-arms=" in page and "learning-train-risk" in page and "script-src 'sha256-" in unescape(page)
    assert f'href="{name}"' in (site / "report.html").read_text()


@pytest.mark.slow
def test_nothing_is_loaded_from_the_network(site):
    loads = r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^\s"'>]+"""
    styles = r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//[^)"']+"""
    found = {
        file.name: match
        for file in [*site.rglob("*.html"), *site.rglob("*.css")]
        for match in re.findall(f"{loads}|{styles}", file.read_text())
    }
    assert not found


@pytest.mark.slow
def test_no_markdown_is_left_over(site):
    """Tables, links and code that were not recognised as such would stand there as text."""
    for file in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", file.read_text(), flags=re.DOTALL)
        left = re.search(r"\|---|``|\]\[lightning_app|\]\([\w/]+\.md|^:::", text, re.MULTILINE)
        assert left is None, (file, left)


@pytest.mark.slow
def test_every_committed_figure_is_in_the_gallery_with_its_claims_and_command(site):
    html = (site / "papers" / "gallery.html").read_text()
    cards = re.findall(r'<div style="width: \d+px">(.*?)</div>', html, re.DOTALL)
    figures = {"/".join(file.parts[-3:-1]): file for file in (ROOT / "results").glob("*/*/figure.png")}
    assert len(cards) == len(figures) > 20
    for path, file in figures.items():
        (card,) = (one for one in cards if f'src="{path}.png"' in one)
        verdict = json.loads(file.with_name("verdict.json").read_text())
        assert (site / "papers" / f"{path}.png").read_bytes() == file.read_bytes()
        assert f'href="{path}.html"' in card and (site / "papers" / f"{path}.html").exists()
        assert f"<code>{verdict['command']}</code>" in card
        assert all(f"{n} {word}" in card for outcomes in verdict["counts"].values() for word, n in outcomes.items())


@pytest.fixture(scope="module")
def index(site) -> list[dict[str, str]]:
    script = (site / "search-index.js").read_text()
    return json.loads(re.fullmatch(r"const searchIndex = (.*);\n", script, re.DOTALL)[1])


@pytest.mark.slow
def test_every_heading_has_an_entry_and_every_word_under_it_is_there(site, index):
    indexed = {}
    for one in index:
        file, _, anchor = one["location"].partition("#")
        indexed.setdefault(file, {})[anchor] = one["text"]
    assert indexed.keys() == {str(file.relative_to(site)) for file in site.rglob("*.html")} - {*RUN_PAGES, "404.html"}
    for name, sections in indexed.items():
        main = re.search(r'itemprop="articleBody">(.*)</div>\s*</div><footer>', (site / name).read_text(), re.DOTALL)[1]
        assert re.findall(r'<h[1-6] [^>]*?id="([^"]+)', main) == [*sections], name
        rest = re.sub(r"<(h[1-6]|style)\b.*?</\1>", " ", main, flags=re.DOTALL)
        words = unescape(re.sub(r"<[^>]*>", " ", rest)).split()
        found = "".join("".join(sections.values()).split())  # a tag inside a word parts it
        assert not {word for word in words if word not in found}, name


TYPE = """
const press = key => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const wait = () => new Promise(done => setTimeout(done, 20));
(async () => {
  const seen = {};
  press("/");
  const box = document.activeElement;
  seen.box = box.getAttribute("aria-label");
  for (const text of WORDS) {
    const status = document.querySelector(".search-results p");
    status.textContent = "";
    box.value = text;
    box.dispatchEvent(new Event("input"));
    while (!status.textContent) await wait();  // the first one loads the index
    const links = [...document.querySelectorAll(".search-results li a")];
    seen[text] = {
      status: status.textContent,
      links: links.map(each => [each.textContent, each.href]),
      marks: [...document.querySelectorAll("mark")].map(each => each.textContent),
    };
  }
  press("ArrowDown"); press("ArrowDown");
  seen.second = document.activeElement.href;
  press("ArrowUp"); press("ArrowUp");
  seen.back = document.activeElement === box;
  press("Escape");
  seen.closed = document.querySelector(".search-results").hidden;
  seen.tags = document.querySelectorAll(".search-results img").length;
  return seen;
})()
"""


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("page", ["index.html", "measures/index.html"], ids=["top", "folder"])
def test_search_works_from_a_file_by_keyboard(site, page):
    texts = ["layercushion", "EFFECTIVE_input", "effective_input xyzzy", "<img src=x>", "hessian spectrum"]
    with tab(site / page) as opened:
        seen = opened.run(TYPE.replace("WORDS", json.dumps(texts)))
    assert seen["box"] == "Search" and seen["back"] and seen["closed"] and seen["tags"] == 0
    (cushion, *_), spectrum = seen["layercushion"]["links"], seen["hessian spectrum"]["links"]
    assert (
        cushion[0] == "LayerCushion"
        and cushion[1] == (site / "measures" / "layer_cushion.html").as_uri() + "#layercushion"
    )
    assert seen["second"] == spectrum[1][1]
    assert {mark.lower() for mark in seen["EFFECTIVE_input"]["marks"]} == {"effective_input"}
    assert seen["effective_input xyzzy"]["links"] == [] == seen["<img src=x>"]["links"]
    assert seen["<img src=x>"]["status"] == "No sections have all these words."


def test_backticked_names_become_links_and_doctests_code():
    assert linked("see `f` and ``f`` and `g`", {"f": "a.f"}) == "see [`f`][a.f] and ``f`` and `g`"
    assert fenced("What.\n\n>>> 1\n1\n\nMore.") == "What.\n\n```pycon\n>>> 1\n1\n```\n\nMore."
