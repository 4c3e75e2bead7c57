"""Runs as pandas frames: every number of the files, no other, exactly, under the names that the report uses."""

import csv
import itertools
import math
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest
import yaml

from callbacks import LayerCushion, TrainingMetrics
from lightning_app.common.errors import UserError
from lightning_app.report.page_data import gather
from lightning_app.runs import Row, RunFolder, find_runs, frames, open_run
from lightning_app.runs.loggers import RunLogger
from tests.helpers import classifier, digits, fit

AWKWARD = [0.1, 1 / 3, 5e-324, -2.5e17, math.inf, -math.inf, math.nan, 1.7976931348623157e308]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> RunFolder:
    """A real run of two arms and two seeds, with cushions of all layers."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "pair")
    callbacks = [TrainingMetrics(), LayerCushion()]
    options = {"callbacks": callbacks, "logger": [RunLogger(folder.path)], "num_sanity_val_steps": -1}
    fit(classifier(seeds="0-1"), data=digits(train_limit=64), **options)
    return folder


def rows(folder: RunFolder) -> dict[tuple[str, int, str], float]:
    """The log by (member, epoch, name), read by the standard library alone."""
    with (folder.path / "log.csv").open(newline="") as file:
        return {(row["member"], int(row["epoch"]), row["name"]): float(row["value"]) for row in csv.DictReader(file)}


def write(path, members, epochs=(0, 1), names=("test/error",), config=None) -> RunFolder:
    folder = RunFolder(path)
    keys = itertools.product(epochs, members, names)
    folder.append(Row(member, epoch, 10 * epoch, name, 0.5 / (1 + epoch)) for epoch, member, name in keys)
    if config is not None:
        (path / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_the_table_is_the_log_read_slowly(trained):
    table = open_run(trained.path).table()
    expected = rows(trained)
    assert {(*key, name) for key, row in table.iterrows() for name in row.dropna().index} == set(expected)
    for (member, epoch, name), value in expected.items():
        assert table.loc[(member, epoch), name] == value


def test_numbers_come_back_exactly(tmp_path):
    RunFolder(tmp_path).append(Row("net", epoch, 0, "a/layer01/b", value) for epoch, value in enumerate(AWKWARD))
    run = open_run(tmp_path)
    for values in (run.table()["a/layer01/b"], run.layers()["value"], run.log()["value"], frames(tmp_path)["value"]):
        assert list(map(repr, values.tolist())) == list(map(repr, AWKWARD))


def test_layers_are_the_numbers_of_layers_with_their_names_taken_apart(trained):
    run = open_run(trained.path)
    layers, log = run.layers(), run.log()
    again = layers["family"] + "/" + layers["layer"] + "/" + layers["field"]
    of_layers = log[log["name"].str.contains("/layer")]
    assert again.tolist() == of_layers["name"].tolist()
    for column in ("member", "epoch", "value"):
        assert layers[column].tolist() == of_layers[column].tolist()
    assert set(layers["layer"]) == {f"layer{number:02d}" for number in range(1, 6)}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("cushion/layer10/median", ("cushion", "layer10", "median")),
        ("noise/smoothness/layer03/mean/deep", ("noise/smoothness", "layer03", "mean/deep")),
        ("interlayer/block02-block05/median", ("interlayer", "block02-block05", "median")),
        ("weight_mass/mean", None),
        ("layer/mean", None),
    ],
)
def test_what_is_a_layer_s(tmp_path, name, parts):
    write(tmp_path, ["net"], epochs=(1,), names=(name, "x/layer01/y"))
    found = open_run(tmp_path).layers()[["family", "layer", "field"]].to_numpy().tolist()
    assert found == [*([list(parts)] if parts else []), ["x", "layer01", "y"]]


def test_samples_are_the_arrays_and_give_the_numbers(trained):
    run = open_run(trained.path)
    samples = run.samples("cushion")
    by_layer = samples.groupby(["member", "epoch", "layer"])["value"]
    logged = run.layers().query("family == 'cushion' and field == 'median'").set_index(["member", "epoch", "layer"])
    assert by_layer.ngroups == len(logged) == 4 * 3 * 5
    for (member, epoch, layer), values in by_layer:
        assert np.array_equal(values, trained.arrays(epoch, "cushion")[f"{member}/cushion/{layer}/samples"])
        assert np.quantile(values, 0.5) == pytest.approx(logged.loc[(member, epoch, layer), "value"], rel=1e-6)
    assert samples.groupby(["member", "epoch", "layer"])["sample"].apply(list).map(lambda s: s == [*range(20)]).all()
    last = run.samples("cushion", epoch=2)
    assert last.equals(samples[samples["epoch"] == 2].reset_index(drop=True))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"file": "cushions"}, "no cushions.npz in .*; there are cushion"),
        ({"epoch": 7}, "no arrays of epoch 7; it has 0, 1, 2"),
        ({"field": "sample"}, "no array 'sample' in cushion.npz; there are .*samples"),
    ],
)
def test_samples_that_are_not_there_are_an_error_message(trained, asked, said):
    with pytest.raises(UserError, match=said):
        open_run(trained.path).samples(**asked)


def test_arrays_that_are_no_lists_are_refused(tmp_path):
    write(tmp_path, ["net"]).save_arrays(1, "noise", {"net/noise/responses": np.ones((2, 3))})
    with pytest.raises(UserError, match=r"responses has shape \(2, 3\)"):
        open_run(tmp_path).samples("noise", "responses")


def test_finals_are_the_last_numbers_never_the_best_and_nan_where_nan_was_measured(tmp_path):
    run = RunFolder(tmp_path)
    numbers = [(1, "a", 0.1), (2, "a", 0.9), (1, "b", 3.0), (1, "c", 0.5), (2, "c", math.nan), (2, "a", 0.8)]
    run.append(Row("net-seed07", epoch, epoch, name, x) for epoch, name, x in numbers)  # a of 2 again: after a resume
    run.append([Row("", 2, 2, "lr", 0.1)])
    finals = open_run(tmp_path).finals()
    assert set(finals.columns) == {"arm", "seed", "epoch", "a", "b", "c"}
    assert finals.loc["net-seed07", ["arm", "seed", "epoch", "a", "b"]].tolist() == ["net", 7, 2, 0.8, 3.0]
    assert math.isnan(finals.loc["net-seed07", "c"])


def test_the_configuration_is_flat(tmp_path):
    write(tmp_path, ["net"], config={"model": {"seeds": 3, "betas": [0.9, 0.99]}, "empty": {}})
    flat = {"model.seeds": 3, "model.betas.0": 0.9, "model.betas.1": 0.99, "empty": {}}
    assert open_run(tmp_path).config().to_dict() == flat


def test_a_run_without_numbers_shows_itself_too(tmp_path):
    RunFolder(tmp_path).append([])
    run = open_run(tmp_path)
    assert len(run.log()) == len(run.finals()) == len(run.table()) == len(run.layers()) == len(run.modules()) == 0
    assert "0 nets, 0 epochs, not finished" in run._repr_html_()


def test_a_damaged_file_costs_what_is_in_it(tmp_path):
    folder = write(tmp_path, ["plain"])
    (folder.path / "finished").write_text("soon")
    run = open_run(tmp_path)
    assert "1 net, 1 epoch, finished" in repr(run) and "finished" in run._repr_html_()


def test_runs_below_a_folder_are_named_packed_ones_too(tmp_path):
    write(tmp_path / "one", ["plain"])
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "log.csv.xz").write_bytes(b"")
    with pytest.raises(UserError, match=r"there are .*one, .*two, \.\.\."):
        open_run(tmp_path)


def test_what_a_notebook_shows_is_text(tmp_path):
    folder = write(tmp_path / "<b>run", ["<script>alert(1)</script>", "plain"], epochs=(0, 3))
    folder.finish(3)
    shown = open_run(folder.path)._repr_html_()
    assert "<script>" not in shown and "<b>run" not in shown.replace("<p><b>", "")
    assert "&lt;script&gt;" in shown
    assert "2 nets, 3 epochs, finished" in shown
    assert "<td>0.125</td>" in shown


def test_the_page_is_shown_in_a_frame_of_its_own(tmp_path):
    folder = write(tmp_path / "run<b>", ["plain", "residual"])
    run = open_run(folder.path)
    folder.append([Row("plain", 2, 0, "test/error", 0.0625)])  # after it was opened
    html = run.show("learning", height=300)._repr_html_()
    (frame,) = re.findall(
        r'^<iframe sandbox="allow-scripts allow-downloads" srcdoc="([^"]*)" [^>]*height: 300px[^>]*></iframe>$', html
    )
    page = unescape(frame)
    assert "plain,test/error,2,0.0625" in page and 'id="learning"' in page and 'id="headline"' not in page
    assert "<b>" not in page and page.index("<base ") < page.index("<meta")
    assert 'id="headline"' in run.show().page
    with pytest.raises(UserError, match=r"no section 'learnin'\. Did you mean 'learning'"):
        run.show("learnin")


def test_guesses_are_not_taken_for_what_was_recorded(tmp_path):
    write(tmp_path, ["plain"])
    (tmp_path / "members.csv").write_text("name\n")
    run = open_run(tmp_path)
    for read in (run.nets, run.finals, lambda: frames(tmp_path)):
        with pytest.raises(UserError, match=r"members\.csv is not a list of members"):
            read()
    assert "members.csv is not a list of members" in run._repr_html_()


def test_a_run_is_shown_without_its_configuration(tmp_path):
    write(tmp_path, ["plain", "residual"])
    (tmp_path / "config.yaml").write_text("[")
    run = open_run(tmp_path)
    assert run.members() == ["plain", "residual"] and "2 nets, 1 epoch" in repr(run)
    assert "config.yaml" in run._repr_html_() and "<td>0.25</td>" in run._repr_html_()
    with pytest.raises(UserError, match=r"config\.yaml"):
        run.nets()


def test_a_folder_that_is_no_run_names_the_runs_below_it(tmp_path):
    write(tmp_path / "group" / "run", ["net"])
    with pytest.raises(UserError, match=r"found none in .*; there are .*group/run, \.\.\.: open one"):
        open_run(tmp_path)
    with pytest.raises(UserError, match=r"found none in .*nowhere\.$"):
        open_run(tmp_path / "nowhere")


def banks(root):
    for name, seeds in (("fig2", "0-1"), ("fig2~2", "2-3")):
        members = [f"{arm}-seed{seed:02d}" for seed in map(int, seeds.split("-")) for arm in ("plain", "residual")]
        write(root / name, members, config={"model": {"seeds": seeds, "depth": 20}})


def sweep(root):
    for number, (depth, seed) in enumerate([(20, 0), (20, 1), (32, 0)], start=1):
        config = {"model": {"seeds": f"{seed}-{seed}", "depth": depth}}
        write(root / ("net" if number == 1 else f"net~{number}"), ["net"], config=config)


@pytest.mark.parametrize("layout", [banks, sweep])
def test_arms_and_seeds_are_the_report_s(tmp_path, layout):
    layout(tmp_path)
    found = frames(tmp_path).drop_duplicates(["run", "member"])[["run", "member", "arm", "seed"]]
    nets = gather(find_runs([tmp_path])).nets
    assert found.astype(object).to_numpy().tolist() == [[n.run.label, n.name, n.group, n.seed] for n in nets]
    assert len(nets) > 1


def test_all_numbers_of_all_runs_are_there_once(tmp_path, trained):
    other = write(tmp_path / "other", ["net"], names=("test/error", "only/here"))
    both = frames([trained.path, other.path])
    assert both.columns.tolist() == ["run", "arm", "seed", "member", "epoch", "step", "name", "value"]
    found = {(row.run, row.member, row.epoch, row.name): row.value for row in both.itertuples(index=False)}
    labels = [run.label for run in gather([trained, other]).runs]
    runs = zip(labels, (trained, other), strict=True)
    assert found == {(label, *key): value for label, run in runs for key, value in rows(run).items()}
    assert len(both) == len(found)


def test_only_some_numbers_and_none_for_the_whole_run(tmp_path):
    folder = write(tmp_path / "run", ["net"], names=("test/error", "lr"))
    folder.append([Row("", 1, 10, "lr", 0.1)])
    assert frames(tmp_path, names=["test/error"])["name"].tolist() == ["test/error"] * 2
    assert frames(tmp_path, names="test/error").equals(frames(tmp_path, names=["test/error"]))
    with pytest.raises(UserError, match=r"none of these runs has a number test/eror. Did you mean test/error\?"):
        frames(tmp_path, names=["test/error", "test/eror"])
    whole = frames(tmp_path).query("member == ''").iloc[0]
    assert pd.isna(whole["arm"]) and pd.isna(whole["seed"]) and whole["run"] == "run"
