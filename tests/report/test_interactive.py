"""The page answers to pointer and keys, with the numbers of the CSV, and its address holds what is shown."""

import csv
import io
import json
import math
import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from lightning_app.common.scripts import squeezed
from lightning_app.report import write_report
from lightning_app.report.interactive import script
from lightning_app.runs import Row, RunFolder
from tests.report.chromium import needs_chromium, tab
from tests.report.conftest import bare_run, make_run
from tests.report.test_epochs import DRAWN
from tests.report.test_page import Page

SEEDS, EPOCHS = 3, 3
ERROR = "#learning-test-error"
TITLE = f"document.querySelector('{ERROR} .difference .title')?.textContent"
READY = "document.querySelector('.bar input')?.parentElement.hidden === false"  # when what it moves is unpacked
PLACE = """(element => { element.scrollIntoView({block: "center"}); const box = element.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2]; })"""


def test_texts_of_the_script_stay_as_they_are():
    text = """{ const a = "b = c", d = `e ${f ? `, ${g} h` : " = "} i`; const j = x / y - -z + 1; // k = l
      const l = "a; b"; const m = 2;
      k.replace(/[" /]=  "/, 'm = n'); }"""
    wanted = (
        """{const a="b = c",d=`e ${f ? `, ${g} h` : " = "} i`;const j=x/y - -z+1,l="a; b";const m=2;"""
        """k.replace(/[" /]=  "/,'m = n')}"""
    )
    assert squeezed(text) == wanted


def test_limits_of_size(page):
    """The script has at most 24,000 bytes; with all it needs, the page is at most 1.3 times as long as without."""
    assert len(script().encode()) <= 24_000
    without = re.sub(r"<script>.*?</script>| data-(?:arms?|axes|rows)='.*?'", "", page, flags=re.DOTALL)
    without = re.sub(r"/\* what only the script makes.*?so far \*/", "", without, flags=re.DOTALL)
    without = re.sub(r'<a download="(?:[\w-]*-epochs|maps-figure)\.csv\.gz".*?</a>', "", without)
    assert len(page.encode()) <= 1.3 * len(without.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bank")


@pytest.fixture(scope="module")
def log(folder):
    """Of the run behind `bank`."""
    members = [f"{arm}-seed{i:02d}" for arm in ("plain", "residual") for i in range(SEEDS)]
    run = make_run(folder / "run", members, EPOCHS)
    values = np.random.default_rng(1).random((EPOCHS + 1, len(members), 3)).tolist()
    for epoch, its in enumerate(values):
        layers = [
            (who, f"signal/layer{i}/update", each) for who, row in zip(members, its) for i, each in enumerate(row)
        ]
        run.append([Row(who, epoch, epoch, name, value) for who, name, value in layers])
    write_report([run], folder / "bank.html")
    return run.log()


@pytest.fixture
def bank(log, folder):
    """A page with three seeds an arm, just opened."""
    with tab(folder / "bank.html") as opened:
        opened.until(READY)
        yield opened


def every(opened, selector: str, of: str) -> list:
    """What an expression of ``each`` comes to, for all that the selector finds."""
    return opened.run(f"[...document.querySelectorAll({selector!r})].map(each => {of})")


def texts(opened, selector: str) -> list[str]:
    return every(opened, selector, "each.textContent")


def tick(opened, key: str, label: str) -> list[float]:
    """Where in the window matplotlib wrote this number below the x axis."""
    labels = f"[...document.querySelectorAll('#{key} svg.panel > g:not([class]) text')]"
    return opened.run(f"{PLACE}({labels}.find(each => each.textContent.trim() === {label!r}))")


def point(opened, key: str, label: str) -> list[str]:
    """The readout of a panel with the pointer above a tick; its first line is the place."""
    x, y = tick(opened, key, label)
    opened.move(x, y - 90)
    opened.until(f"document.querySelector('#{key} .readout text')?.textContent.endsWith(' {label}')")
    return texts(opened, f"#{key} .readout text")


def button(opened, label: str, selector: str = ".bar button") -> None:
    """Press the one whose label begins like that."""
    labelled = f"(each.ariaLabel || each.textContent).startsWith({label!r})"
    opened.run(f"[...document.querySelectorAll({selector!r})].find(each => {labelled}).click()")


def show(opened, selector: str) -> None:
    opened.run(f"document.querySelector({selector!r}).scrollIntoView()")


def of_seeds(log, arm: str, name: str, seeds=range(SEEDS)) -> np.ndarray:
    """(epochs, seeds)"""
    its = log[log["name"] == name].pivot(index="epoch", columns="member", values="value")
    return its[[f"{arm}-seed{seed:02d}" for seed in seeds]].to_numpy()


@pytest.mark.slow
@needs_chromium
class TestCursor:
    def test_the_value_under_the_pointer_is_the_csv_to_its_last_digit(self, page, single):
        beginnings = ("net,name", "net,layer,field")
        tables = [list(csv.reader(io.StringIO(pre))) for pre in Page(page).pre if pre.startswith(beginnings)]
        values = {tuple(row[:3]): row[-1] for table in tables for row in table[1:]}

        def expected(*what: str) -> list[str]:
            return [f"■ {net} {values[net, *what]}" for net in ("plain", "residual")]

        names = {"learning-train-risk": "train/risk", "curve-weight_mass-mean": "weight_mass/mean"}
        with tab(single) as opened:
            for key, name in names.items():
                for epoch in ("0", "4"):
                    assert point(opened, key, epoch) == [f"epoch {epoch}", *expected(name, epoch)]
            assert point(opened, "cushion-median", "8") == ["layer 8", *expected("layer08", "median")]

    @pytest.mark.parametrize(  # logarithmic, linear, by layer
        ("key", "label"), [("learning-train-risk", "2"), ("learning-train-error", "2"), ("cushion-median", "8")]
    )
    def test_dots_lie_on_the_curves_that_matplotlib_drew(self, single, key, label):
        with tab(single) as opened:
            point(opened, key, label)
            dots = every(opened, f"#{key} .dot", "[each.cx.baseVal.value, each.cy.baseVal.value]")
            paths = " ".join(every(opened, f"#{key} [data-arm] > path", "each.getAttribute('d')"))
        corners = [tuple(map(float, corner.split())) for corner in re.findall(r"[ML] ([-\d.]+ [-\d.]+)", paths)]
        assert len(dots) == 2
        assert all(min(math.dist(dot, corner) for corner in corners) < 0.02 for dot in dots)

    def test_of_many_seeds_the_ends_are_those_of_finite_numbers(self, tmp_path):
        """With a diverged one named as the most, wherever it stands among them."""
        values = ["0.5", "nan", "0.25", "0.75", "1e-05", "nan", "0.375", "inf", "0.625"]
        run = bare_run(tmp_path / "run", members := [f"plain-seed{i:02d}" for i in range(len(values))], 1)
        run.append([Row(who, 1, 391, "test/error", float(each)) for who, each in zip(members, values, strict=True)])
        with tab(write_report([run])) as opened:
            opened.until("document.querySelector('.bar').hidden === false")
            _, least, most = point(opened, "learning-test-error", "1")
        assert least == "■ plain, min 1e-05" and most in ("■ plain, max of 9 nan", "■ plain, max of 9 inf")

    def test_one_epoch_is_marked_everywhere(self, bank):
        """Also in panels that come into view later; layers are not epochs."""
        x, y = tick(bank, "learning-test-error", "2")
        bank.click(x, y - 90)
        bank.until("location.hash === '#at=epoch:2'")
        for key in ("#curve-weight_mass-std", "#learning-train-risk"):
            show(bank, key)
            bank.until(f"document.querySelector('{key} .readout text')?.textContent === 'epoch 2'")
        show(bank, "#cushion-median")
        bank.until("document.querySelector('#cushion-median .over')")
        assert texts(bank, "#cushion-median .readout text") == []

    def test_rows_of_epochs_and_of_ends_are_told_apart(self, tmp_path):
        """Epochs as a legend and the slider write them, and what is least and what is most, in the room of one line."""
        nets, epochs = [f"{arm}-seed{i:02d}" for arm in ("plain", "residual") for i in range(3)], (0, 4 / 45, 32 / 45)
        run = bare_run(tmp_path / "run", nets, 1)
        for step, epoch in enumerate(epochs):
            names = [f"signal/layer{layer:02d}/activation" for layer in (1, 2, 3)]
            run.append([Row(who, epoch, step, name, 1.0 + i) for i, who in enumerate(nets) for name in names])
        with tab(write_report([run]), anchor="#signals-1") as opened:
            opened.until("document.querySelector('#signals-1')?.tabIndex === 0")
            opened.run("document.querySelector('#signals-1').focus()")
            opened.press("Home")
            opened.until("document.querySelector('#signals-1 .readout text')")
            read = texts(opened, "#signals-1 .readout text")[1:]
        ends = {"min": "4.0", "max of 3": "6.0"}
        assert read == [
            f"■ residual, epoch {epoch}, {end} {value}"
            for epoch in ("0", "0.0889", "0.7111")
            for end, value in ends.items()
        ]

    def test_keys_are_promised_where_they_read_something(self, bank):
        """Not in histograms, which have no curves."""
        panels = every(
            bank, "[data-axes]", "[each.parentElement.id, each.parentElement.ariaLabel, each.parentElement.tabIndex]"
        )
        promised = {key for key, label, _ in panels if label and "Arrow keys" in label}
        assert (
            promised
            == {key for key, _, index in panels if index == 0}
            == {key for key, *_ in panels if "histogram" not in key}
        )
        assert len(promised) < len(panels)

    def test_everything_by_keyboard(self, bank, log):
        """The cursor through a panel's epochs and away, and the buttons; what is read is said."""

        def said() -> str:
            words = bank.until("document.querySelector('.spoken').textContent")
            bank.run("document.querySelector('.spoken').textContent = ''")
            return words

        bank.run(f"document.querySelector('{ERROR}').focus()")
        heads = []
        for key in ("ArrowRight", "ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"):
            bank.press(key)
            heads.append(said().partition(";")[0])
        assert heads == [f"epoch {epoch}" for epoch in (0, 1, 3, 3, 2, 0)]
        bank.press("ArrowRight")
        words, wanted = said(), log[(log["name"] == "test/error") & (log["epoch"] == 1)]
        assert all(f"{net} {value!r}" in words for net, value in zip(wanted["member"], wanted["value"]))
        bank.press("Escape")
        bank.until(f"location.hash === '' && !document.querySelector('{ERROR} .readout')")
        bank.press("Tab")
        assert bank.run("document.activeElement.closest('.tools') !== null")
        bank.run("document.querySelector('.bar button').focus()")
        bank.press(" ")
        assert bank.until("location.hash") == "#off=plain"
        bank.press("Tab")
        bank.press("Tab")
        assert bank.run("document.activeElement.ariaLabel") == "seed 0"
        assert bank.until(f"document.querySelectorAll('{ERROR} .lit path').length") == 1  # residual's curve


@pytest.mark.slow
@needs_chromium
class TestChoice:
    def test_an_arm_leaves_every_panel_and_comes_back(self, bank):
        def shown() -> list[str]:
            return [
                arm
                for arm in every(bank, "svg.panel [data-arm]", "each.getClientRects().length > 0 && each.dataset.arm")
                if arm
            ]

        before = shown()
        button(bank, "plain")
        assert set(shown()) == {"1"} and set(before) == {"0", "1"}
        assert every(bank, "#learning .legend li", "getComputedStyle(each).opacity") == ["0.4", "1", "1"]
        read = [row.split()[1] for row in point(bank, "learning-train-error", "1")[1:]]
        assert sorted(read) == [f"residual-seed{i:02d}" for i in range(SEEDS)]
        button(bank, "plain")
        assert shown() == before

    def test_without_a_seed_the_mean_is_of_the_others(self, bank, log):
        show(bank, ERROR)
        button(bank, "seed 1")
        bank.until(f"document.querySelector('{ERROR} .drawn path')")
        path = every(bank, f"{ERROR} .drawn path.bold", "each.getAttribute('d')")[0]
        axes = json.loads(every(bank, f"{ERROR} svg.panel", "each.dataset.axes")[0])
        kind, low, high, bottom, top = axes["of"][1]
        drawn = [float(each) for each in re.findall(r"[ML][-\d.]+,([-\d.]+)", path)]
        mean = of_seeds(log, "plain", "test/error", (0, 2)).mean(axis=1)
        assert kind == "linear"
        assert drawn == pytest.approx(bottom + (mean - low) / (high - low) * (top - bottom), abs=0.011)
        assert bank.run("location.hash") == "#seeds=1"
        for seed in (0, 2):
            button(bank, f"seed {seed}")
        assert not any(every(bank, f"{ERROR} [data-arm], {ERROR} .drawn path", "each.getClientRects().length"))

    def test_a_minus_b_is_the_paired_difference(self, bank, log):
        show(bank, ERROR)
        for i, name in enumerate(("plain", "residual")):
            select = f"document.querySelectorAll('.bar select')[{i}]"
            bank.run(f"{select}.value = {name!r}, {select}.dispatchEvent(new Event('change'))")
        point(bank, "learning-test-error", "3")
        said = texts(bank, f"{ERROR} .difference text")
        difference = of_seeds(log, "plain", "test/error") - of_seeds(log, "residual", "test/error")
        assert "plain − residual, 3 pairs" in said
        assert f"{difference[-1].mean():.4g}" in [text.rstrip("0") for text in said]
        assert len(every(bank, f"{ERROR} .difference .band", "1")) == 1  # the band
        bank.run(f"{select}.value = 'residual-seed01', {select}.dispatchEvent(new Event('change'))")
        bank.until(f"{TITLE} === 'plain − residual-seed01, 3 − 1 nets'")
        bank.run("location.hash = 'learning&a=plain-seed00&b=residual-seed01'")
        bank.until(f"{TITLE} === 'plain-seed00 − residual-seed01, 1 pair'")
        bank.run("location.hash = 'cushions&a=plain&b=residual'")
        show(bank, "#cushion-median")
        assert bank.until("document.querySelector('#cushion-median .difference')?.ariaLabel").endswith(
            "plain minus residual"
        )

    def test_without_a_seed_in_both_that_is_said(self, tmp_path):
        run = bare_run(tmp_path / "run", ("plain-seed00", "plain-seed01", "residual-seed02", "residual-seed03"), 2)
        with tab(write_report([run]), anchor="#learning-test-error&a=plain&b=residual") as opened:
            opened.until(f"{TITLE} === 'plain − residual, none in common'")
            assert opened.look()["errors"] == []

    def test_profiles_have_a_line_an_epoch(self, bank, log):
        show(bank, "#signals-0")
        bank.run("location.hash = 'signals&a=plain&b=residual'")
        point(bank, "signals-0", "1")
        said = texts(bank, "#signals-0 .difference text")
        gaps = of_seeds(log, "plain", "signal/layer1/update") - of_seeds(log, "residual", "signal/layer1/update")
        assert ", ".join(f"{gap:.4g}" for gap in gaps.mean(axis=1)) in [re.sub(r"0+(?=,|$)", "", each) for each in said]
        assert len(every(bank, "#signals-0 .difference .bold", "1")) == EPOCHS + 1

    def test_histograms_of_another_seed(self, bank, folder):
        show(bank, "#histogram-last")
        button(bank, "seed 0")
        bank.until("document.querySelector('#histogram-last svg.moved') !== null")
        tops, titles, pixel, highest = bank.run(f"{DRAWN}('histogram-last')")
        saved = RunFolder(folder / "run").arrays(EPOCHS, "weight_mass")
        counts = saved["plain-seed01/weight_mass_transferred/histogram/counts"]
        low = counts < highest
        np.testing.assert_allclose(np.array(tops)[low], counts[low], atol=0.06 * pixel)
        assert titles == [f"All weights, epoch {EPOCHS}, seed 1"]

    def test_the_address_holds_what_is_shown(self, bank, folder):
        controls = "[...document.querySelectorAll('.bar button, .bar select')]"
        state = f"JSON.stringify({controls}.map(each => each.value || each.ariaPressed))"
        start = bank.run(state)
        button(bank, "residual")
        button(bank, "seed 2")
        address, there = bank.run(f"[location.hash, {state}]")
        assert address == "#off=residual&seeds=2"
        bank.run("history.back()")
        bank.until("location.hash === '#off=residual'")
        bank.run("history.back()")
        bank.until(f"location.hash === '' && {state} === {start!r}")
        bank.run("history.go(2)")
        bank.until(f"location.hash === {address!r} && {state} === {there!r}")
        bank.run("document.querySelector('nav a[href=\"#weights\"]').click()")  # a link within the page loses nothing
        bank.until(f"location.hash === '#weights{address.replace('#', '&')}' && {state} === {there!r}")
        anchor = "#cushions&at=epoch:2&off=residual&seeds=2&b=%E0%A4%A&nonsense=1"
        with tab(folder / "bank.html", anchor=anchor) as other:
            other.until(READY)
            assert other.run(state) == there and other.run("scrollY") > 500
            assert texts(other, ".bar output") == ["epoch 2"]
            assert other.look()["errors"] == []


@pytest.mark.slow
@needs_chromium
def test_a_panel_is_saved_as_it_is_seen(bank, folder):
    bank.browser.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    button(bank, "plain")
    point(bank, "learning-test-error", "2")
    files = [folder / f"learning-test-error.{form}" for form in ("svg", "png")]
    for file in files:
        button(bank, file.suffix[1:], f"{ERROR} .tools button")
    end = time.monotonic() + 300
    while not all(file.exists() for file in files):
        assert time.monotonic() < end, [*folder.iterdir()]
        time.sleep(0.05)
    text = files[0].read_text()
    written = ["".join(each.itertext()) for each in ElementTree.fromstring(text).iter() if each.tag.endswith("}text")]
    how = "bold: mean of the seeds, band: ± sd, thin: minimum and maximum"
    assert {"epoch 2", "residual", "(3 seeds)", how} <= {*written}
    assert any("residual-seed00 0." in each for each in written)
    assert not re.search(r'var\(--(?!columns)|<script|data-axes="[^"]', text) and "plain" not in written
    with Image.open(files[1]) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[1] >= 900 and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20
    assert (pixels[0, 0] == 255).all()


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_dark_and_light_are_the_page_s(single, dark):
    """Ink on its ground at least 4.5 : 1, in what the script draws too."""

    def luminance(colour: str) -> float:
        channels = (int(each) / 255 for each in re.findall(r"\d+", colour)[:3])
        linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
        return float(np.dot((0.2126, 0.7152, 0.0722), linear))

    with tab(single, dark=dark) as opened:
        point(opened, "learning-test-error", "2")
        (ground,) = map(luminance, every(opened, "body", "getComputedStyle(each).backgroundColor"))
        inks = every(opened, ".readout text", "getComputedStyle(each).fill")
        inks += every(opened, ".bar button", "getComputedStyle(each).color")
    assert (ground < 0.5) == dark
    for ink in map(luminance, inks):
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) > 4.5
