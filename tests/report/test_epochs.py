"""Every epoch on the page: frames are the arrays of the run, maps are its log, and both move in a browser."""

import csv
import gzip
import io
import json
import re
from base64 import b64decode

import numpy as np
import pytest

from lightning_app.report import write_report
from lightning_app.report.page_data import gather
from lightning_app.report.sections import cushions, maps, weights
from tests.report.chromium import needs_chromium, tab
from tests.report.conftest import bare_run, make_run, rows

EPOCHS = range(7)


def packed(text: str, name: str) -> list[list[str]]:
    """The rows of a compressed file within the page."""
    uri = re.search(rf'download="{name}\.csv\.gz" href="data:application/gzip;base64,([^"]*)"', text)[1]
    return [*csv.reader(io.StringIO(gzip.decompress(b64decode(uri)).decode()))][1:]


def numbers(cell: str) -> np.ndarray:
    return np.array(cell.split(), dtype=float)


def test_frames_are_the_arrays_of_every_epoch(finished, page):
    rows = packed(page, "weight-histograms-epochs")
    assert {row[0] for row in rows} == {"histogram-last", "histogram_id-last"}
    assert [int(row[2]) for row in rows if row[:2] == ["histogram-last", "plain"]] == [*EPOCHS]
    edges = None
    for panel, net, epoch, x, y in rows:
        edges = numbers(x) if x else edges
        part = f"{net}/weight_mass_transferred/{panel.removesuffix('-last')}"
        saved = finished.arrays(int(epoch), "weight_mass")
        assert (numbers(y) == saved[f"{part}/counts"]).all()
        np.testing.assert_allclose(edges, saved[f"{part}/edges"], rtol=1e-5, atol=1e-12)


def test_frames_of_cushions_hold_every_sample(finished):
    (view,) = (each for each in views(finished) if each.key.endswith("samples"))
    assert [each.epoch for each in view.frames] == [*EPOCHS] * len({each.net.name for each in view.frames})
    for net, epoch, edges, counts in view.frames:
        saved = finished.arrays(epoch, "cushion")[f"{net.name}/cushion/layer10/samples"]
        inner = (saved > edges[3]) & (saved < edges[-4])
        assert counts.sum() == saved.size and counts[3:-3].sum() == inner.sum() > 0


def views(run):
    page = gather([run])
    saved = page.saved("cushion", ["cushion/layer10/samples"])
    found = cushions._samples({net: saved[net] for net in page.firsts()}, "cushion/layer10/samples")
    return [cushions._view("cushion-histogram-samples", "", (), found, found)]


def test_axes_reach_to_every_epoch(finished):
    page = gather([finished])
    (figure,) = weights._histograms(page)
    rows = [*csv.reader(io.StringIO(figure.frames))][1:]
    places = json.loads(re.search("data-axes='([^']*)'", figure.panels[1].svg)[1])["of"][0]
    most = max(abs(numbers(x)[1:][numbers(y) > 0]).max() for _, _, _, x, y in rows if x)
    assert places[1] <= -most < most <= places[2]


def test_maps_have_every_layered_number_with_all_digits(finished, page):
    rows = packed(page, "maps-figure")
    log = finished.log().set_index(["member", "name", "epoch"])["value"]
    layers, seen = {}, 0
    for measure, net, epoch, values in rows:
        if not net:
            layers[measure] = values.split("/")
            continue
        for layer, value in zip(layers[measure], values.split(), strict=True):
            assert value == repr(float(log[net, measure.replace("*", layer), int(epoch)]))
            seen += 1
    assert seen == sum("/layer" in name for _, name, _ in log.index) > 0
    assert {*layers} == {f"cushion/*/median{end}" for end in ("", "_transferred", "_branch")}


def test_too_many_numbers_for_a_page_are_left_out_and_it_says_so(tmp_path, monkeypatch):
    page = gather([make_run(tmp_path / "run", ["plain-seed00", "plain-seed01"], epochs=3)])
    of_one = 3 * 19 * 4

    def shown(most: int) -> tuple[set[str], set[str], str]:
        monkeypatch.setattr(maps, "MOST", most)
        (figure,) = maps.section(page).blocks
        rows = [*csv.reader(io.StringIO(figure.csv))][1:]
        return {row[1] for row in rows} - {""}, {row[2] for row in rows} - {""}, figure.caption

    assert shown(2 * of_one)[:2] == ({"plain-seed00", "plain-seed01"}, {"0", "1", "2", "3"})
    nets, epochs, caption = shown(of_one)
    assert (nets, epochs) == ({"plain-seed00"}, {"0", "1", "2", "3"}) and maps.FIRST in caption
    nets, epochs, caption = shown(of_one // 2)
    assert (nets, epochs) == ({"plain-seed00"}, {"1", "3"}) and "Only one epoch in 2 is here" in caption


def test_the_epochs_that_are_left_are_the_same_for_nets_of_other_lengths(tmp_path, monkeypatch):
    """Else a map of their difference would have no epoch."""
    nets = [make_run(tmp_path / name, [name], epochs) for name, epochs in (("plain", 4), ("residual", 3))]
    monkeypatch.setattr(maps, "MOST", 3 * 19 * 5)  # of 9 epochs in all
    (figure,) = maps.section(gather(nets)).blocks
    rows = [*csv.reader(io.StringIO(figure.csv))][1:]
    assert {(net, epoch) for _, net, epoch, _ in rows if net} == {
        *(("plain", epoch) for epoch in "024"),
        *(("residual", epoch) for epoch in "02"),
    }


def test_without_numbers_of_layers_there_are_no_maps(tmp_path):
    run = make_run(tmp_path / "run", ["net"], 0)
    assert maps.section(gather([run]).having("nothing")) is None


DRAWN = """(key => {
  const svg = document.querySelector(`[id="${key}"] svg.panel`), path = svg.querySelector(":scope > svg path");
  const {of: [, [, low, high, from, to]]} = JSON.parse(svg.dataset.axes);
  const tops = [...path.getAttribute("d").matchAll(/V([-\\d.]+)H/g)].map(each => Number(each[1]));
  const titles = [...svg.querySelectorAll("text")].map(each => each.textContent).filter(each => each.includes(", epoch "));
  return [tops.map(y => low + (y - from) / (to - from) * (high - low)), titles, Math.abs((high - low) / (to - from)), high];
})"""
PIXELS = """(canvas => {
  const {width, height} = canvas, {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
  return [height, width, data.filter((value, i) => i % 4 === 3 && value === 255).length];
})"""  # layers, epochs, and how many of them have a colour
READY = "document.querySelector('.map') !== null"
TICKS = "[...document.querySelector('.map .layers').children].map(each => each.textContent)"
SLIDER = "document.querySelector('.bar input[type=range]')"


@pytest.mark.slow
@needs_chromium
def test_the_slider_shows_every_epoch(single, finished):
    with tab(single, anchor="#weight-histograms") as opened:
        opened.until(READY)
        assert opened.run(f"[{SLIDER}.min, {SLIDER}.max]") == ["0", str(EPOCHS[-1])]
        opened.run(f"{SLIDER}.focus()")
        opened.press("Home")
        opened.until(f"{SLIDER}.value === '0' && document.querySelector('#histogram-last svg.moved') !== null")
        looks = "[...document.querySelectorAll('#histogram-last svg.panel > svg path')].map(each => each.style.color)"
        assert opened.run(looks) == ["var(--plain-0)", "var(--residual-0)"]
        for epoch in EPOCHS:
            opened.until(f"{SLIDER}.getAttribute('aria-valuetext') === 'epoch {epoch}'")
            tops, titles, pixel, highest = opened.run(f"{DRAWN}('histogram-last')")
            counts = finished.arrays(epoch, "weight_mass")["plain/weight_mass_transferred/histogram/counts"]
            low = counts < highest  # the peak at 0 is cut off, on purpose
            np.testing.assert_allclose(np.array(tops)[low], counts[low], atol=0.06 * pixel)
            assert titles == [f"All weights, epoch {epoch}"]
            opened.press("ArrowRight")
        opened.run("document.activeElement.blur()")
        opened.press(" ")  # plays, from the first epoch on again
        opened.until(f"{SLIDER}.value === '1'")
        assert opened.run(f"{SLIDER}.previousElementSibling.ariaLabel") == "pause"
        opened.press(" ")
        assert opened.run(f"{SLIDER}.previousElementSibling.ariaLabel") == "play"
        assert "at=epoch" in opened.until("location.hash.includes('epoch') && location.hash")
        assert opened.look()["errors"] == []


@pytest.mark.slow
@needs_chromium
def test_an_epoch_stays_under_a_pointer_over_layers(single):
    """And without a cursor the slider is where the panels are: at the last epoch."""
    heading = (
        "[...document.querySelectorAll('#histogram-last text')].some(each => each.textContent.includes('epoch 2'))"
    )
    with tab(single, anchor="#histogram-last&at=epoch:2") as opened:
        opened.until(f"{READY} && {SLIDER}.value === '2' && {heading}")
        over = "new PointerEvent('pointermove', {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2})"
        opened.run("window.profile = document.querySelector('#cushion-median'), box = profile.getBoundingClientRect()")
        opened.run(f"profile.dispatchEvent({over})")
        opened.until("document.querySelector('.bar output').textContent.startsWith('layer')")
        assert opened.run(heading)
        opened.press("Escape")
        opened.until(f"!{heading}")
        assert opened.run(f"[{SLIDER}.value, {SLIDER}.ariaValueText]") == ["6", "epoch 6"]


@pytest.mark.slow
@needs_chromium
def test_reduced_motion_steps(single):
    with tab(single) as opened:
        opened.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        opened.until(READY)
        opened.press(" ")
        opened.until(f"{SLIDER}.value === '0'")
        assert opened.run(f"new Promise(done => setTimeout(() => done({SLIDER}.value), 500))") == "0"


@pytest.mark.slow
@needs_chromium
def test_maps_answer_to_pointer_and_keys(single, finished):
    with tab(single, anchor="#maps") as opened:
        opened.until(READY)
        titles = opened.run("[...document.querySelectorAll('.map h3')].map(each => each.textContent)")
        assert titles == ["plain", "residual", "residual over plain"] or titles[2] == "residual − plain"
        options = opened.run("[...document.querySelectorAll('#maps-figure option')].map(each => each.value)")
        assert options == [f"cushion/*/median{end}" for end in ("", "_transferred", "_branch")]
        assert opened.run(f"{PIXELS}(document.querySelector('.cells canvas'))") == [19, 7, 19 * 7]
        assert opened.run(TICKS) == [str(layer) for layer in range(1, 20, 2)]
        opened.run("document.querySelector('.cells').focus()")
        for key in ("ArrowUp", "ArrowLeft", "Enter"):  # from layer 1 at the last epoch
            opened.press(key)
        behind = opened.run("document.querySelector('#maps-figure [aria-live]').innerText")
        exact = finished.log().set_index(["member", "name", "epoch"])["value"]["plain", "cushion/layer02/median", 5]
        assert behind.split("\n")[0] == "cushion/layer02/median, epoch 5" and behind.split()[-1] == repr(float(exact))
        assert opened.run(f"{SLIDER}.value") == "5"
        opened.run("document.querySelector('.map details').open = true")
        table = "document.querySelector('.map details').querySelectorAll('td').length"
        assert opened.until(table) == 19 * 7
        assert opened.look()["errors"] == []


@pytest.mark.slow
@needs_chromium
def test_a_map_counts_layers_whose_names_are_no_numbers(tmp_path):
    run, layers = bare_run(tmp_path / "run", epochs=1), ("layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1")
    blocks = ("layer1.0", "layer1.1", "layer2.0", "layer2.10")
    for epoch in (0, 1):
        run.append(rows("plain", epoch, {f"signal/{layer}/rms": epoch + i for i, layer in enumerate(layers)}))
        run.append(rows("plain", epoch, {f"interlayer/{block}/mean": epoch + i for i, block in enumerate(blocks)}))
        spans = {"interlayer/block02-block03/median": epoch, "interlayer/block02-block05/median": epoch}
        run.append(rows("plain", epoch, spans))
    with tab(write_report([run]), anchor="#maps") as opened:
        opened.until(READY)
        assert opened.run(TICKS) == ["1", "2", "3"]
        opened.run("location.hash = 'maps&map=' + encodeURIComponent('interlayer/*/mean')")
        opened.until("document.querySelector('#maps-figure select').value === 'interlayer/*/mean'")
        assert opened.until(f"{TICKS}.length === 4 && {TICKS}") == ["1", "2", "3", "4"]
        opened.run("location.hash = 'maps&map=' + encodeURIComponent('interlayer/*/median')")
        assert opened.until(f"{TICKS}.length === 2 && {TICKS}") == ["1", "2"]  # each was "NaN"
