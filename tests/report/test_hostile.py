"""Names that would be something else than text: on the page, in a browser, in a spreadsheet, in LaTeX, as files."""

import csv
import io
import json
import re
from xml.etree import ElementTree

import pytest
import yaml

from lightning_app.common.text import FORMULA, HIDDEN, visible
from lightning_app.report import write_report
from lightning_app.report.exports import FORMATS
from lightning_app.report.page import export_folder
from lightning_app.runs import Row
from tests.report.chromium import needs_chromium, tab
from tests.report.conftest import make_run
from tests.report.test_page import Page

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</style><svg onload=alert(3)>",
    "</pre></title></textarea><iframe src=javascript:alert(4)>",
    "javascript:alert(5)",
    "{{ 7*7 }}{% raw %}",
    "turned\u202eround\u2066\x07\x1b[31m",
    "=cmd|' !A0",
    "50%_$\\frac{1}{$#^~&",
    "päper–λ名字🙂",
    "w" * 300,
)


def plant(folder, names=HOSTILE):
    """A run whose nets, layers, measures, configuration and command line all bear such names."""
    run = make_run(folder / names[0].replace("/", "|")[:200], [f"res {name}" for name in names], epochs=1)
    run.append(Row("", 1, 1, f"cost/{name}", 1.0) for name in names)
    run.append(Row(f"res {names[0]}", 1, 1, f"cushion/{name.replace('/', '|')}/median", 1.0) for name in names)
    run.append(Row(f"res {names[0]}", 1, 1, f"{name}/value", 1.0) for name in names)
    run.append(Row(f"res {names[0]}", 1, 1, f"{name.replace('/', '|')}/layer01/value", 1.0) for name in names)
    config = yaml.safe_dump({name: {"value": name} for name in names}, allow_unicode=True)
    notes = "".join(f"# commit: {name}\n" for name in names if name.isprintable())
    (run.path / "config.yaml").write_text(notes + config)
    return run


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The page on two such runs, so that their differences are shown too, and its files."""
    folder = tmp_path_factory.mktemp("hostile")
    runs = [plant(folder), plant(folder, HOSTILE[:-4:-1])]
    page = write_report(runs, folder / "page.html", export=[form for form in FORMATS if form != "pdf"])
    return page.read_text(), export_folder(page)


@pytest.mark.slow
def test_the_page_has_no_element_or_attribute_more(hostile, page):
    found, clean = Page(hostile[0]), Page(page)
    assert found.tags <= clean.tags | {"wbr"}
    assert {name for _, name, _ in found.attributes} <= {name for _, name, _ in clean.attributes}
    assert all(value.startswith(("#", "data:")) for _, name, value in found.attributes if name in ("href", "src"))


@pytest.mark.slow
def test_the_page_shows_them_as_text(hostile):
    text = Page(hostile[0]).text
    for name in HOSTILE:
        assert visible(name) in text
    assert not HIDDEN.search(hostile[0])


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_runs_none_of_them(hostile, tmp_path, width):
    file = tmp_path / "page.html"
    file.write_text(hostile[0])
    with tab(file, width) as opened:
        opened.until("document.querySelector('.map') !== null")
        for name in opened.run("[...document.querySelectorAll('#maps-figure option')].map(each => each.value)"):
            opened.run(f"location.hash = 'maps&at=epoch:1&map=' + encodeURIComponent({json.dumps(name)})")
            opened.until(f"document.querySelector('#maps-figure select').value === {json.dumps(name)}")
        seen = opened.look()
    assert (seen["alerts"], seen["errors"], seen["console"], seen["requests"], seen["handlers"]) == ([], [], [], [], [])
    assert not {"img", "iframe"} & seen["tags"].keys() and seen["tags"]["script"] == 1
    assert seen["wide"] == [] and seen["scroll"] <= width
    assert all(visible(name) in seen["text"] for name in HOSTILE)


@pytest.mark.slow
def test_files_are_valid_and_stay_in_their_folder(hostile):
    _, folder = hostile
    files = list(folder.iterdir())
    assert {file.suffix for file in files} == {".svg", ".csv", ".tex"}
    assert all(re.fullmatch(r"[\w.-]+", file.name) for file in files)
    for file in folder.glob("*.svg"):
        names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(file).iter()}
        assert not {"script", "iframe", "img"} & names


@pytest.mark.slow
def test_no_cell_of_any_csv_is_a_formula(hostile):
    _, folder = hostile
    cells = [
        cell
        for file in folder.glob("*.csv")
        for row in csv.reader(io.StringIO(file.read_text(), newline=""))
        for cell in row
    ]
    assert any("cmd|" in cell for cell in cells)
    for cell in cells:
        assert not cell.startswith(FORMULA) or re.fullmatch(r"[-+][\d.e+-]+|-inf|[-+\d.e]+ ± [\d.e+-]+", cell), cell


@pytest.mark.slow
def test_latex_has_no_command_of_theirs(hostile):
    _, folder = hostile
    for file in folder.glob("*.tex"):
        body = file.read_text().partition("\\midrule")[2]
        assert "\\frac" not in body
        assert not re.search(r"(?<!\\)[%#]", body.partition("\\bottomrule")[0])


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_hidden_stays(name):
    assert not HIDDEN.search(visible(name))
    assert visible(visible(name)) == visible(name)
