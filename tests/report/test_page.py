"""The page: its numbers are the log's, it stands alone, it is the same twice, and it says what it lacks."""

import base64
import gzip
import math
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml

from lightning_app.common.errors import UserError
from lightning_app.report import write_report
from lightning_app.report.blocks import SHOWN, Data, csv_text
from lightning_app.report.interactive import script
from lightning_app.report.page import title_of
from lightning_app.report.page_data import gather, loss_of
from lightning_app.report.pairs import pairs
from lightning_app.report.sections import cushions, first, headline, layers, learning, outcome, weights
from lightning_app.runs import LayerRow, Row, RunFolder
from tests.report.conftest import bare_run, only
from tests.silence import SILENT

FAMILIES = ("weight_mass", "cushion")
SECTIONS = (  # in order
    "findings",
    "learning",
    "headline",
    "weights",
    "cushions",
    "maps",
    "prediction",
    "conventions",
    "costs",
    "configs",
)
CLOSED = {"prediction", "conventions", "costs", "configs"}  # at first


class Page(HTMLParser):
    """Rows of the tables as lists of (text, title), the texts of <pre>, all text, and every tag and attribute met."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, str]]] = []
        self.pre: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append(("", dict(attrs).get("title", "")))
        if tag == "pre":
            self.pre.append("")
        if tag in ("td", "th", "pre"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] == "pre":
            self.pre[-1] += data
        elif self.open:
            text, title = self.rows[-1][-1]
            self.rows[-1][-1] = (text + data, title)

    def row(self, head: str, part: int = 0) -> list[tuple[str, str]]:
        return [row for row in self.rows if row and row[0][0] == head][part]


def page_of(*runs: RunFolder, **kwargs) -> str:
    return write_report(runs, **kwargs).read_text()


def value(run: RunFolder, member: str, name: str, epoch: int) -> float:
    log = run.log()
    return log[(log["member"] == member) & (log["name"] == name) & (log["epoch"] == epoch)]["value"].item()


def section(text: str, key: str) -> str:
    return re.search(rf'<section id="{key}">(.*?)</section>', text, re.DOTALL)[1]


def test_headline_is_the_final_epoch_of_the_log(finished, page):
    row = Page(page).row("residual")
    exact = [title for _, title in row[2:]]
    names = ["train/risk", "train/cost", "train/cost_paper", "train/error", "test/error", "test/risk"]
    assert row[1][0] == "6"
    logged = {name: value(finished, "residual", name, 6) for name in names}
    assert exact[:-1] == [repr(number) for number in logged.values()]
    assert float(exact[-1]) == logged["test/error"] - logged["train/error"]
    assert float(row[2][0]) == pytest.approx(logged["train/risk"], rel=1e-3)


def test_final_epoch_is_shown_even_if_an_earlier_one_was_better(run):
    run.append([Row("plain", 7, 1, "train/risk", 9.0), Row("plain", 7, 1, "test/error", 0.75)])
    row = Page(page_of(run)).row("plain")
    assert (row[1][0], row[2][1], row[6][1]) == ("7", "9.0", "0.75")
    assert row[3][0].endswith("epoch 6")  # the cost was not measured at 7, and the cell says so
    assert row[-1][0] == "–" or row[-1][0].endswith("epoch 6")


def test_weight_table_has_both_ends_of_w_and_t(finished, page):
    row = Page(page).row("Mass of ID entries", part=1)  # of the second net
    ends = [("weight_mass", 0), ("weight_mass", 6), ("weight_mass_transferred", 0), ("weight_mass_transferred", 6)]
    assert [title for _, title in row[1:]] == [
        repr(value(finished, "residual", f"{prefix}/id_entries", epoch)) for prefix, epoch in ends
    ]
    assert len(Page(page).row("Mass of ID entries")) == 3  # of the plain net, where t is w


def test_data_behind_the_curves_is_the_log(finished, page):
    data = next(text for text in Page(page).pre if text.startswith("net,name,epoch,value"))
    assert f"plain,train/risk,3,{value(finished, 'plain', 'train/risk', 3)!r}" in data.splitlines()
    assert "plain,train/risk_running,0," not in data


def test_histogram_data_counts_every_sample(page):
    data = next(text for text in Page(page).pre if text.startswith("net,layer,samples,epoch"))
    rows = [line.split(",") for line in data.splitlines()[1:]]
    assert {row[1] for row in rows} == {"layer10"}
    for samples in ("samples", "samples_transferred", "samples_branch"):
        assert sum(int(row[-1]) for row in rows if row[0] == "plain" and row[2] == samples) == 500


def test_layer_can_be_chosen_and_a_wrong_one_is_refused(finished, tmp_path):
    assert "layer05" in section(page_of(finished, out=tmp_path / "page.html", layer="layer05"), "cushions")
    with pytest.raises(UserError, match=r"layer01, layer02.*got layer99"):
        write_report([finished], layer="layer99")


def test_costs_sum_up(finished, page):
    row = next(row for row in Page(page).rows if len(row) == 6 and row[1][0] == "cushion")
    log = finished.log()
    seconds = log.loc[log["name"] == "cost/cushion", "value"]
    assert row[2][0] == "7"
    assert float(row[4][1]) == pytest.approx(seconds.sum(), rel=1e-12)
    assert row[5][0] == f"{100 * seconds.sum() / log.loc[log['name'] == 'time/epoch', 'value'].sum():.1f} %"


def test_page_needs_nothing_else(page):
    text = page
    assert not re.search(r"https?:|@import|\burl\((?!#)", text.replace(script(), ""))
    assert text.count("<script") == 1
    links = [value for _, name, value in Page(text).attributes if name in ("href", "src", "xlink:href")]
    assert links
    assert all(link.startswith(("#", "data:text/csv", "data:application/gzip")) for link in links)


def test_anchors_exist_once(page):
    attributes = Page(page).attributes
    ids = [(tag, value) for tag, name, value in attributes if name == "id" and tag in ("section", "figure", "div")]
    assert len(ids) == len({value for _, value in ids})
    anchors = {value[1:] for tag, name, value in attributes if tag == "a" and name == "href" and value[0] == "#"}
    assert anchors <= {value for _, value in ids}
    assert tuple(value for tag, value in ids if tag == "section") == SECTIONS
    assert set(SECTIONS) <= anchors


def test_sections_that_answer_no_question_are_closed_at_first(page):
    folds = re.findall(r'<section id="([^"]*)"><details( open)?>', page)
    assert {key for key, shown in folds if not shown} == CLOSED and len(folds) == len(SECTIONS)


def test_same_input_same_bytes(finished, page, tmp_path):
    assert page.encode() == write_report([finished], tmp_path / "again.html").read_bytes()


def test_colours_follow_the_page(page):
    svg = re.search(r"<svg.*?</svg>", section(page, "learning").split('class="panels"')[1], re.DOTALL)[0]
    assert "var(--plain-0," in svg
    assert "var(--residual-0," in svg
    assert not re.search(r"(fill|stroke): #", svg)  # nothing black on a dark page


def test_long_data_is_shown_in_part_and_a_compressed_file_with_every_digit():
    assert Data("short", "a\n").shown == "a\n"
    rows = [("net", epoch, math.sqrt(epoch)) for epoch in range(20_000)]
    data = Data("curves", csv_text(("net", "epoch", "value"), rows))
    packed = base64.b64decode(data.uri.removeprefix("data:application/gzip;base64,"))
    assert data.file == "curves.csv.gz"
    assert gzip.decompress(packed).decode() == data.csv
    assert len(data.uri) < 0.6 * len(data.csv)
    assert data.csv.splitlines()[3] == f"net,2,{math.sqrt(2)!r}"
    assert data.shown.endswith(f"... and {20_001 - SHOWN} more lines in the file\n")
    assert data.csv.startswith(data.shown.partition("...")[0])


def test_nets_differ_without_colour(page):
    svg = re.search(r'<svg class="panel".*?</svg>', page, re.DOTALL)[0]
    dashes = {bool(re.search("stroke-dasharray", line)) for line in re.findall(r"<path[^>]*stroke: var\([^>]*>", svg)}
    assert dashes == {True, False}


def test_epochs_within_one_are_rounded(tmp_path):
    run = RunFolder(tmp_path / "run")
    numbers = "test/error", "hessian/unconverged", "hessian/layer01/unconverged"
    run.append(Row("net", 2 / 3, 2, name, 0.0) for name in numbers)
    run.append([Row("net", 1, 3, "train/risk", 2.0)])
    text = page_of(run)
    assert "epoch 0.6667" in section(text, "headline") and "epoch 0.6667" in section(text, "curvature")
    assert "0.66666" not in section(text, "headline")
    assert "<td>0.66666" not in section(text, "curvature") and "epoch 0.66666" not in section(text, "curvature")


def test_missing_families_are_said(tmp_path):
    run = RunFolder(tmp_path / "bare")
    run.append([Row("net", 0, 0, "train/risk", 2.3)])
    text = page_of(run)
    assert "Weight mass was not measured" in section(text, "weights")
    assert "Layer cushions were not measured" in section(text, "cushions")
    assert "Neither epoch times nor costs" in section(text, "costs")
    assert "no config.yaml" in section(text, "configs")
    assert "test/error" in section(text, "learning")
    empty = RunFolder(tmp_path / "empty")
    empty.append([])
    assert "No net has logged a number yet" in page_of(empty)


@pytest.mark.parametrize("model", ["resnet18", {"net": "resnet18"}, {"arms": [1, 2]}, {"net": {"init_args": 3}}])
def test_other_people_s_configurations_say_nothing_of_the_net(tmp_path, model):
    runs = [RunFolder(tmp_path / name) for name in ("one", "other")]
    for run in runs:
        run.append([Row("net", 0, 0, "weight_norm/total", 2.3)])
        (run.path / "config.yaml").write_text(yaml.safe_dump({"model": model}))
    assert "2.3" in page_of(runs[0])
    assert write_report(runs).exists()


def test_numbers_without_their_arrays(run):
    for family in FAMILIES:
        for file in run.path.rglob(f"{family}.npz"):
            file.unlink()
    text = page_of(run)
    assert "No histograms of weights were saved" in text
    assert "No cushions per sample were saved at layer10" in text
    assert 'id="cushion-medians"' in text


def test_a_first_seed_without_arrays_and_layers_does_not_hide_those_of_others(make):
    """As a run that was copied without its measurements: "No histograms of weights were saved", of seeds that had them."""
    seeds = [make(f"bank-seed{seed}", epochs=1, seed=seed) for seed in (0, 1)]
    shutil.rmtree(seeds[0].path / "measurements")
    seeds[1].save_layers([LayerRow("plain", "layer01", "conv", "Conv2d", (4, 3, 3, 3), "")])
    page = gather(seeds)
    for module in (weights, cushions):
        found = module.section(page)
        histograms = next(block for block in found.blocks if "histograms" in block.key)
        assert not found.notices and histograms.panels and histograms.frames
        assert [entry.label for entry in histograms.legend] == ["bank-seed1/plain", "bank-seed1/residual"]
    assert [table.title for table in layers.section(page).blocks] == ["bank-seed1/plain"]


@pytest.mark.parametrize("epochs", [0, 1])
def test_short_runs(make, epochs):
    assert "Where the weights are" in page_of(make("short", epochs=epochs))


@SILENT
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_diverged_run_is_told_and_kept(make, lost):
    run = make("lost", epochs=3)
    names = [name for name in run.log()["name"].unique() if name.split("/")[0] not in ("cost", "time")]
    run.append(Row("residual", epoch, 1, name, lost) for epoch in (2, 3) for name in names)
    for family, part in (("cushion", "residual"), ("weight_mass", "edges")):
        arrays = run.arrays(3, family)
        run.save_arrays(3, family, {key: np.full(a.shape, lost) if part in key else a for key, a in arrays.items()})
    text = page_of(run)
    assert "residual diverged in epoch 2: its risk or weights were not finite." in text
    assert Page(text).row("residual")[2] == (str(lost), repr(lost))
    assert any(f"residual,train/risk,3,{lost}" in pre for pre in Page(text).pre)


def test_dead_samples_are_counted_not_drawn(run):
    arrays = run.arrays(6, "cushion")
    arrays["plain/cushion/layer10/samples"][:3] = math.nan
    run.save_arrays(6, "cushion", arrays)
    text = page_of(run)
    assert "Not drawn, because x is zero or the cushion infinite: 3." in text
    data = next(pre for pre in Page(text).pre if pre.startswith("net,layer,samples,epoch"))
    rows = [line.split(",") for line in data.splitlines() if line.startswith("plain,layer10,samples,")]
    assert sum(int(row[-1]) for row in rows) == 497


def test_broken_files_are_named_and_hide_nothing_else(run, page):
    names = ("measurements/epoch=0006/cushion.npz", "layers.csv", "notes.txt", "keys.csv", "members.csv")
    for name in names:
        (run.path / name).write_bytes(b"PK broken\xff")
    after = page_of(run)
    assert all(f"Left out, {run.path / name}" in after.replace("<wbr>", "") for name in names)
    assert len(after) > 0.8 * len(page)


def test_several_runs_side_by_side(make):
    runs = [make("pln20", ["net"], 2), make("res20", ["net"], 2, seed=1)]
    page = write_report(runs)
    assert page == runs[0].path.parent / "report.html"
    parsed = Page(page.read_text())
    assert parsed.row("pln20")[2][1] == repr(value(runs[0], "net", "train/risk", 2))
    assert parsed.row("res20")[2][1] == repr(value(runs[1], "net", "train/risk", 2))
    assert [text for text, _ in parsed.row("seed_everything")] == ["seed_everything", "0", "1"]
    assert [text for text, _ in parsed.row("model.init_args.lr")][1:] == ["0.01", "0.02"]
    assert "var(--plain-0," in page.read_text()  # by the runs' names: the member is called "net"


def test_runs_of_one_name_keep_apart(make):
    parsed = Page(page_of(make("a/res20", ["net"], 1), make("b/res20", ["net"], 1, seed=1)))
    assert parsed.row("a/res20") != parsed.row("b/res20")


def test_seeds_have_a_mean(make):
    members = [f"{arm}-seed{i:02d}" for arm in ("plain", "residual") for i in range(3)]
    run = make("bank", members, 1)
    text = page_of(run)
    errors = [value(run, f"plain-seed{i:02d}", "test/error", 1) for i in range(3)]
    row = Page(text).row("plain: mean ± sd of 3")
    assert float(row[6][1].split(" ± ")[0]) == pytest.approx(sum(errors) / 3, rel=1e-12)
    how = "bold: mean of the seeds, band: ± sd, thin: minimum and maximum"
    named = [text.count(f"{each}</span>") for each in ("plain (3 seeds)", "residual (3 seeds)", how)]
    assert named[0] > 0 and len({*named}) == 1  # once in each legend
    two = make("two", [*members, "other-seed00", "other-seed01"], 1)
    assert "bold: mean of the seeds, band (from 3 seeds on): ± sd, thin: minimum and maximum</span>" in page_of(two)


@pytest.mark.parametrize(
    ("labels", "title"),
    [
        (["res20-seed03"], "res20-seed03"),
        (["depth20~0-0", "depth20~1-2"], "depth20"),
        (["res20-seed00", "res20-seed01", "full"], "res20, full"),
        (["seed00", "seed01"], "seed00, seed01"),
        (["a", "a~2"], "a, a~2"),
        (["a", "b", "c", "d", "e"], "a, b, c, d, …"),
    ],
)
def test_seeds_of_one_name_are_one_in_the_title(tmp_path, labels, title):
    assert title_of([RunFolder(tmp_path / label) for label in labels]) == title


def test_where_a_page_is_written(tmp_path):
    run = RunFolder(tmp_path / "bare")
    run.append([Row("net", 0, 0, "train/risk", 2.3)])
    assert write_report([run]) == run.path / "report.html"
    assert write_report([run], tmp_path) == tmp_path / "report.html"
    assert write_report([run], tmp_path / "new" / "page.html").exists()


@pytest.mark.parametrize(
    ("losses", "unit"), [(["cross_entropy"] * 2, " (nats)"), (["cross_entropy", "squared_error"], "")]
)
def test_of_mixed_losses_a_risk_has_no_unit(tmp_path, losses, unit):
    runs = [bare_run(tmp_path / f"run{i}", epochs=1) for i in range(2)]
    for run, loss in zip(runs, losses, strict=True):
        (run.path / "config.yaml").write_text(f"model: {{loss: {loss}}}")
    text = only(headline, *runs) + only(learning, *runs)
    assert all(f">{head}{unit}</th>" in text for head in ("train risk L", "cost C", "test risk"))
    assert f"Risk: mean {'cross-entropy' if unit else 'loss'}{unit} per sample" in text and ("nats" in text) == bool(
        unit
    )
    assert ("differ (cross_entropy and squared_error): their risks have no common unit" in text) != bool(unit)


def test_a_run_that_diverged_before_it_could_log_it_is_said_to(tmp_path):
    run = bare_run(tmp_path / "lost", epochs=3)
    run.add_divergence(4, "the loss of member 'plain' became NaN or infinite in epoch 4 (step 7).\nWhere: the data.")
    assert first.section(gather([run]), ()).lead.startswith(
        "2 nets in 1 run, 3 epochs; stopped: lost ('plain' diverged in epoch 4). "
    )
    assert headline.section(gather([run])).notices == [
        "plain diverged in epoch 4: its risk or weights were not finite."
    ]
    ends = Page(only(headline, run))
    assert {text for text, _ in ends.row("plain")[2:]} <= {"nan", "–"} and "nan" not in str(ends.row("residual"))
    assert pairs(gather([run]), least=1)[1][0] == "plain − residual: the only pair left out, because a net diverged."
    run.append([Row("plain", 5, 5, "train/risk", 1.0)])  # it was resumed, and trained on
    assert "not marked as finished: lost" in first.section(gather([run]), ()).lead
    assert not headline.section(gather([run])).notices


def test_where_no_test_data_were_measured_validation_counts(tmp_path):
    run = RunFolder(tmp_path / "own")
    numbers = {"train/error": 0.125, "val/error": 0.375, "val/risk": 1.5, "test/risk": 1.4}  # errors decide
    run.append([Row("net", 1, 10, name, each) for name, each in numbers.items()])
    page = Page(only(headline, run))
    ends = dict(zip((text for text, _ in page.row("net")), (text for text, _ in page.row("net", 1))))
    assert (
        "cost C" not in ends
        and ends["validation error E"] == "0.3750"
        and ends["gap: validation − train error"] == "0.2500"
    )
    assert "of validation samples" in page.text
    assert "Last validation error: net 0.375." in outcome.outcome(gather([run]))
    assert learning.section(gather([run])).notices == ["Not measured here: train/risk_running, train/risk."]


def test_a_loss_that_is_given_as_a_class_has_no_unit(tmp_path):
    run = bare_run(tmp_path / "own")
    (run.path / "config.yaml").write_text("model: {loss: {class_path: my.Loss}, net: my.Net}\ndata: my.Data\n")
    assert loss_of(gather([run]).nets).measured("risk") == "risk"
    assert "2 nets in 1 run, 6 epochs" in outcome.outcome(gather([run]))


def test_a_watched_net_that_is_not_finite_has_diverged(tmp_path):
    run = RunFolder(tmp_path / "watched")
    numbers = {"probe/risk": math.nan, "probe/error": 0.5}  # as with a loss that is no mean
    run.append([Row("net", 0.25, 2, name, value) for name, value in numbers.items()])
    assert gather([run]).nets[0].diverged is None
    run.append([Row("net", 0.5, 5, "weight_mass/all", math.nan)])
    assert gather([run]).nets[0].diverged == 1 and "1 net in 1 run, 5 steps;" in outcome.outcome(gather([run]))
    assert ("risk on the probe", "nan") in zip(
        *([text for text, _ in Page(only(headline, run)).row("net", k)] for k in (0, 1))
    )


def test_a_last_number_ends_as_none_only_if_the_net_diverged_after_it(tmp_path):
    run = RunFolder(tmp_path / "lost")
    numbers = {(0, "own/before"): 1.0, (1, "own/then"): 2.0, (1, "train/risk"): math.nan}
    run.append([Row("net", epoch, epoch, name, value) for (epoch, name), value in numbers.items()])
    (net,) = gather([run]).nets
    assert math.isnan(net.end("own/before").value) and net.end("own/then").value == 2.0


def test_seeds_that_were_measured_last_at_different_epochs_name_them(tmp_path):
    """Means and ranges over them did not: one was measured at every second epoch, or stopped."""
    runs = []
    for seed, ends in enumerate(((3, 3), (3, 2), (1, 1))):  # of training and of test errors
        runs.append(RunFolder(tmp_path / f"net-seed{seed}"))
        for name, end in zip(("train/error", "test/error", "cushion/layer01/median"), (*ends, ends[1])):
            runs[-1].append(Row("net", epoch, epoch, name, 0.3 + 0.1 * seed) for epoch in range(end + 1))
    page = gather(runs[:2])
    _, _, train, test, _ = headline.section(page).blocks[0].rows[-1]
    assert (train.note, test.note) == ("", "epoch 2 and 3")
    assert "at the last measured epoch of each net (2 and 3)." in cushions.section(page).blocks[-1].caption
    assert "at the last measured epoch." in cushions.section(gather(runs[:1])).blocks[-1].caption
    assert "net 0.3 to 0.5 (2 seeds, epoch 1 and 3)." in outcome.outcome(gather(runs[::2]))


def test_curves_of_t_are_drawn_where_it_is_not_w(tmp_path):
    run = RunFolder(tmp_path / "plain")
    for epoch in (0, 1):
        for name in ("weight_mass/all", "weight_mass_transferred/all"):
            run.append([Row("net", epoch, epoch, name, 3.0)])
    assert "curve-weight_mass-all" in (text := only(weights, run)) and "curve-weight_mass_transferred-all" not in text
    run.append([Row("net", 2, 2, "weight_mass/all", 3.0), Row("net", 2, 2, "weight_mass_transferred/all", 4.0)])
    assert "curve-weight_mass_transferred-all" in only(weights, run)


def test_a_share_of_no_large_weights_is_none(tmp_path):
    run = bare_run(tmp_path / "small", ["net"], 0)
    run.append(
        Row("net", 0, 0, f"weight_mass/{field}", x) for field, x in {"large": 0.0, "id_over_large": math.nan}.items()
    )
    (table,) = (block for block in weights.section(gather([run])).blocks if block.kind == "table")
    assert [(row[1].text, row[1].note) for row in table.rows] == [("0", ""), ("–", "no weight so large")]


def test_curves_of_weights_come_before_the_tables_which_are_folded(run):
    blocks = weights.section(gather([run])).blocks
    kinds = [block.kind for block in blocks]
    assert kinds == sorted(kinds) and {*kinds} == {"figure", "table"}
    assert all(block.folded for block in blocks if block.kind == "table")


def test_of_three_papers_the_one_that_is_meant_is_named(page):
    for key in ("headline", "weights", "cushions", "conventions"):
        text = Page(section(page, key)).text
        assert "Yu & Tomasi (2019)" in text and not re.search(r"\bthe paper\b", text, re.IGNORECASE), key
