"""The curvature section: its numbers are the run folder's, and what a spectrum leaves open is said beside them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from callbacks import HessianSpectrum
from lightning_app.measures.curvature.spectrum import EDGES
from lightning_app.report import spectra
from lightning_app.report.page_data import gather
from lightning_app.report.sections import curvature as curvature_section
from lightning_app.report.spectra import samples_of
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.configuration import compared
from tests.report.conftest import bare_run, of_member, only, rows
from tests.report.test_page import Page, section, value
from tests.silence import SILENT

HEADS = {
    "λ, largest": "top1",
    "λ, 2nd largest": "top2",
    "λ, smallest": "bottom1",
    "λ, 2nd smallest": "bottom2",
    "Not converged": "unconverged",
    "Trace": "trace",
    "‖H‖, Frobenius": "frobenius",
    "Share of λ < 0, at least": "index_low",
    "Share of λ < 0, at most": "index_high",
    "Share of unresolved sign": "unresolved",
    "|λ|max / |λ|10 %, at least": "condition10_low",
    "|λ|max / |λ|10 %, at most": "condition10_high",
    "Leading, on ID entries": "id/leading",
    "Parameters": "dimension",
    "Products H v": "products",
}


def spectrum(rng: np.random.Generator, **known: float) -> dict[str, float]:
    """Numbers of one spectrum: the outermost eigenvalues converged, the second ones did not."""
    top, bottom = 30 + rng.random(), -2 - rng.random()
    return {
        "dimension": 269_034,
        "products": 12,
        "unconverged": 2,
        "trace": 50 + rng.random(),
        "trace_error": 4.25,
        "frobenius": 40 + rng.random(),
        "frobenius_error": 1.5,
        "index_low": 0.001 * rng.random(),
        "index_high": 0.99 + 0.01 * rng.random(),
        "unresolved": 0.98,
        "condition10_low": 900 + rng.random(),
        "condition10_high": 5000 + rng.random(),
        **{"top1": top, "top1_residual": 1e-5, "top2": top / 2, "top2_residual": 0.5},
        **{"bottom1": bottom, "bottom1_residual": 1e-4, "bottom2": bottom / 2, "bottom2_residual": 0.125},
    } | known


def density(prefix: str, at: Sequence[float]) -> dict[str, np.ndarray]:
    """Its arrays: one eigenvalue at each of the values."""
    counts, edges = np.histogram(at, EDGES.numpy())
    outside = np.array([np.sum(at < edges[0]), np.sum(at > edges[-1])], dtype=float)
    parts = {"counts": counts.astype(float), "edges": edges, "outside": outside}
    return {f"{prefix}/density/{name}": array for name, array in parts.items()}


def measure(
    run: RunFolder,
    members: Sequence[str] = ("plain", "residual"),
    epochs: Sequence[int] = (0, 3, 6),
    prefix: str = "hessian",
    parts: Sequence[str] = (),
    at: Sequence[float] = (-2.0, 1e-8, 3.5, 30.0),
    **known: float,
) -> RunFolder:
    """The run with spectra."""
    rng = np.random.default_rng(7)
    for epoch in epochs:
        arrays = {}
        for member in members:
            found = spectrum(rng, **known) | {"id/leading": rng.random()}
            for part in parts:
                found |= {f"{part}/{key}": number for key, number in spectrum(rng).items()}
            run.append(rows(member, epoch, {f"{prefix}/{key}": number for key, number in found.items()}))
            shares = {f"{prefix}/leading": rng.dirichlet(np.ones(20))}
            arrays |= of_member(member, density(prefix, np.asarray(at)) | shares)
        run.save_arrays(epoch, prefix, arrays)
    return run


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return bare_run(tmp_path / "quick")


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> RunFolder:
    return measure(bare_run(tmp_path_factory.mktemp("curved") / "quick"))


@pytest.fixture(scope="module")
def shown(measured) -> str:
    return curvature(measured)


def curvature(*runs: RunFolder) -> str:
    """The section's HTML; the others' panels would take seconds."""
    return section(only(curvature_section, *runs), "curvature")


def row(text: str, head: str, part: int = 0) -> list[tuple[str, str]]:
    return Page(text).row(head.replace(" ", "\u00a0"), part)[1:]


def data(text: str, head: str) -> Iterator[list[str]]:
    """Rows of the figure's data that begins with these columns."""
    found = next(pre for pre in Page(text).pre if pre.startswith(head))
    return (line.split(",") for line in found.splitlines()[1:])


@pytest.mark.parametrize("head", HEADS)
def test_the_table_is_the_last_epoch_of_the_log(measured, shown, head):
    exact = [title for _, title in row(shown, head)]
    assert exact == [repr(value(measured, net, f"hessian/{HEADS[head]}", 6)) for net in ("plain", "residual")]


def test_the_curves_data_is_the_log(measured, shown):
    found = {(net, name, int(epoch)): float(number) for net, name, epoch, number in data(shown, "net,name,epoch,value")}
    names = ("top1", "bottom1", "top1_residual", "trace", "trace_error", "index_low", "condition10_high", "id/leading")
    for net, name, epoch in itertools.product(("plain", "residual"), names, (0, 3, 6)):
        assert found[net, f"hessian/{name}", epoch] == value(measured, net, f"hessian/{name}", epoch)


def test_the_density_has_every_eigenvalue_at_both_ends_of_training(shown):
    found = [*data(shown, "net,epoch,bin_from")]
    assert {(net, epoch) for net, epoch, *_ in found} == {*itertools.product(("plain", "residual"), "06")}
    for _, _, low, high, count in found:
        assert sum(float(low) <= x < float(high) for x in (-2.0, 1e-8, 3.5, 30.0)) == float(count) == 1
    assert len(found) == 2 * 2 * 4


def test_eigenvalues_beyond_the_bins_are_counted(run):
    assert "Not drawn, beyond -10000 and 10000: 4." in curvature(measure(run, at=(1.0, 2e5), epochs=(0, 1)))


def test_the_leading_eigenvector_by_layer_is_the_array(measured, shown):
    share = measured.arrays(6, "hessian")["residual/hessian/leading"]
    found = [x for net, what, *_, x in data(shown, "net,quantity,layer") if (net, what) == ("residual", "leading")]
    assert [*map(float, found)] == share.tolist()


def test_what_did_not_converge_says_so_beside_the_number(shown):
    for head, residual in {"λ, 2nd largest": "0.5", "λ, 2nd smallest": "0.12"}.items():
        assert all(text.endswith(f"± {residual}, not converged") for text, _ in row(shown, head))
    for head in ("λ, largest", "λ, smallest"):
        assert not any("not converged" in text for text, _ in row(shown, head))
    assert [text for text, _ in row(shown, "Not converged")] == ["2 of 4"] * 2
    assert all(text.endswith("± 4.2") for text, _ in row(shown, "Trace"))
    assert [text for text, _ in row(shown, "Share of unresolved sign")] == ["0.9800"] * 2


def test_as_many_are_marked_as_were_counted(run):
    text = curvature(measure(run, unconverged=3))
    marked = [head for head in [*HEADS][:4] if "not converged" in row(text, head)[0][0]]
    assert marked == ["λ, 2nd largest", "λ, smallest", "λ, 2nd smallest"]  # the smallest ratio is top1's


def test_exact_spectra_have_no_errors(run):
    exact = {f"{end}{place}_residual": 0.0 for end in ("top", "bottom") for place in (1, 2)}
    text = curvature(measure(run, **exact, trace_error=0.0, frobenius_error=0.0, unconverged=0))
    assert "±" not in "".join(cell for head in HEADS for cell, _ in row(text, head))


def test_an_infinite_upper_end_is_said_and_drawn_to_the_top(run, shown):
    text = curvature(measure(run, condition10_high=math.inf))
    assert [cell for cell, _ in row(text, "|λ|max / |λ|10 %, at most")] == ["inf no upper bound"] * 2
    assert "drawn to the top of the axes." in text
    assert [cell for cell, _ in row(text, spectra.ENDLESS)] == ["3 of 3"] * 2 and spectra.OF_ENDLESS in text
    assert "no upper bound" not in shown and spectra.ENDLESS not in shown
    text = curvature(measure(run, condition10_low=math.inf, condition10_high=math.inf))  # a tenth of them are 0
    assert [cell for cell, _ in row(text, "|λ|max / |λ|10 %, at least")] == ["inf"] * 2
    assert "top of the axes" not in shown


@SILENT
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_diverged_spectrum_is_kept(run, lost):
    measure(run)
    names = [name for name in run.log()["name"].unique() if name.startswith("hessian")]
    run.append(Row("residual", 6, 1, name, lost) for name in names)
    assert row(curvature(run), "Trace")[1][1] == repr(lost)


@SILENT
def test_one_spectrum_without_arrays_of_one_net(run):
    text = curvature(measure(run, ["plain"], epochs=[0]))
    assert [title for _, title in row(text, "Trace")] == [repr(value(run, "plain", "hessian/trace", 0))]
    next(run.path.rglob("hessian.npz")).unlink()
    assert "curvature-hessian-density" not in curvature(run)


def test_the_samples_are_those_of_the_configuration(run):
    callback = {"class_path": "callbacks.HessianSpectrum", "init_args": {"prefix": "hessian", "samples": 77}}
    (run.path / "config.yaml").write_text(f"trainer: {{callbacks: [{callback}]}}\n")
    assert "H, the second derivative of the mean loss in all trained parameters, over 77 probe samples" in curvature(
        measure(run)
    )
    (run.path / "config.yaml").write_text(
        f"trainer: {{callbacks: [{callback}]}}\ndata: {{init_args: {{probe_size: 50, train_limit: null}}}}\n"
    )
    assert "over 50 probe samples" in curvature(run)
    (run.path / "config.yaml").write_text("trainer: mine\ndata: mine\n")
    assert "over probe samples" in curvature(run)


def test_the_matrix_is_named(run):
    measure(run, prefix="gauss_newton", epochs=(0, 6))
    text = curvature(run)
    assert "of H, the Gauss-Newton matrix of the mean loss" in text and "most negative" not in text
    measure(run, epochs=(0, 6))
    both = "of H, the Gauss-Newton matrix (gauss_newton), or the second derivative (hessian) of the mean loss"
    assert both in curvature(run)


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [
        ({}, "hessian"),
        ({"prefix": "hessian", "matrix": "gauss_newton"}, "gauss_newton"),
        ({"prefix": "mine", "matrix": "gauss_newton"}, "mine"),
    ],
)
def test_samples_are_of_the_spectrum_whose_name_the_callback_gives(arguments, prefix):
    assert HessianSpectrum(**arguments).prefix == prefix
    config = {"class_path": "callbacks.HessianSpectrum", "init_args": arguments | {"samples": 77}}
    page = SimpleNamespace(runs=[SimpleNamespace(options=compared({"trainer": {"callbacks": [config]}}))])
    found = {each: samples_of(page, each) for each in ("hessian", "gauss_newton", "mine")}
    assert found == {each: [77] * (each == prefix) for each in found}


SEEDS = [f"{arm}-seed{seed:02d}" for arm in ("plain", "residual") for seed in range(3)]


def test_several_seeds_have_a_mean_and_say_what_did_not_converge(tmp_path):
    run = measure(bare_run(tmp_path / "bank", SEEDS, 2), SEEDS, epochs=(0, 2))
    text = curvature(run)
    for key in ("top2", "trace"):
        values = [value(run, f"plain-seed{seed:02d}", f"hessian/{key}", 2) for seed in range(3)]
        found = row(text, next(head for head in HEADS if HEADS[head] == key))
        assert [title for _, title in found[:3]] == [repr(x) for x in values]
        assert float(found[3][1].split(" ± ")[0]) == pytest.approx(np.mean(values), rel=1e-12)
        assert ("3 not converged" in found[3][0]) == (key == "top2")
    assert "Of several seeds the first that has arrays is shown." in text
    assert not any(name.startswith("hessian/condition10") for _, _, name, *_ in data(text, "epoch,group,name"))


def test_an_infinite_end_of_one_seed_has_no_mean_nor_have_seeds_that_are_not_equally_far(tmp_path):
    run = measure(bare_run(tmp_path / "bank", SEEDS, 2), SEEDS, epochs=(0, 2))
    run.append([Row("plain-seed01", 2, 1, "hessian/condition10_high", math.inf)])
    found = row(curvature(run), "|λ|max / |λ|10 %, at most")
    assert found[3][0] == "inf no upper bound"
    assert [cell for cell, _ in row(curvature(run), spectra.ENDLESS)] == [
        *("0 of 2", "1 of 2", "0 of 2", "1 of 6"),
        *("0 of 2", "0 of 2", "0 of 2", "0 of 6"),
    ]
    assert " ± " in found[7][0]
    run.append([Row("plain-seed01", 2, 1, "hessian/condition10_low", math.inf)])
    assert row(curvature(run), "|λ|max / |λ|10 %, at least")[3][0] == "inf"
    run.append([Row("plain-seed01", 3, 1, "hessian/unconverged", 0.0)])
    assert row(curvature(run), "Trace")[3][0] == "–"


def test_every_prefix_is_shown_under_its_name(run):
    measure(run)
    measure(run, prefix="hessian_full", epochs=(0, 6), products=100)
    text = curvature(run)
    assert [text.count(f"<h3>{prefix}</h3>") for prefix in ("hessian", "hessian_full")] == [1, 1]
    assert [row(text, "Products H v", part)[0][0] for part in (0, 1)] == ["12", "100"]
    figures = itertools.product(("hessian", "hessian_full"), ("curves", "density", "layers"))
    assert all(f'id="curvature-{prefix}-{figure}"' in text for prefix, figure in figures)
    assert "hessian_full: Trace" in text


def test_parts_are_no_prefixes_and_have_a_row_each(run):
    measure(run, parts=("id", "rest", "layer01", "layer02"))
    text = curvature(run)
    assert text.count("<h3>") == 2
    for part in ("id", "rest", "layer01", "layer02"):
        found = Page(text).row(part, 1)  # the second table's
        assert found[1][1] == repr(value(run, "residual", f"hessian/{part}/top1", 6))
        assert found[3][0] == "2 of 4"
    by_layer = [float(x) for net, what, *_, x in data(text, "net,quantity,layer") if (net, what) == ("plain", "trace")]
    assert by_layer == [value(run, "plain", f"hessian/layer{number:02d}/trace", 6) for number in (1, 2)]


def test_blocks_of_layers_stand_at_the_layers_own_numbers(run):
    """Frozen layers have none, and those behind them moved up: not so their shares of the leading eigenvector."""
    measure(run, ["plain"], epochs=[0], parts=("layer02", "layer07"))
    found = [row[:3] for row in data(curvature(run), "net,quantity,layer") if row[1] in ("top1", "trace")]
    assert found == [["plain", quantity, layer] for quantity in ("top1", "trace") for layer in ("2", "7")]


@pytest.mark.parametrize("last", ["index_low", "condition10_low", "top1"])
def test_a_log_may_end_between_both_ends_of_an_interval(tmp_path, last):
    """Of a process that was killed while it wrote, or that writes now."""
    run, names = RunFolder(tmp_path), ["unconverged", "top1", "top1_residual", "index_low", "index_high"]
    names += ["condition10_low", "condition10_high"]
    run.append(Row("net", epoch, epoch, f"hessian/{name}", 0.5) for epoch in (0, 1) for name in names)
    run.append(Row("net", 2, 2, f"hessian/{name}", 0.5) for name in names[: names.index(last) + 1])
    assert len(curvature_section.section(gather([run])).blocks) > 1


def test_what_did_not_converge_has_the_largest_residuals_for_its_size(tmp_path):
    """The largest eigenvalue is known to 5 in 10,000, the smallest to a tenth, though its residual is a fifth."""
    run = RunFolder(tmp_path)
    numbers = {"unconverged": 1, "top1": 100.0, "top1_residual": 0.05, "bottom1": -0.1, "bottom1_residual": 0.01}
    run.append(rows("net", 0, {f"hessian/{name}": number for name, number in numbers.items()}))
    assert spectra.doubtful(gather([run]).nets[0], "hessian", 0) == {"bottom1"}


def test_around_an_interval_of_seeds_are_the_outermost_ends_of_any(tmp_path):
    run, axes = RunFolder(tmp_path), Figure().add_subplot()
    for seed, (low, high) in enumerate(((0.1, 0.7), (0.2, 0.9))):
        run.append(rows(f"net-seed{seed:02d}", 0, {"hessian/index_low": low, "hessian/index_high": high}))
    curvature_section._draw_index(axes, gather([run]), "hessian")
    assert sorted(line.get_ydata()[0] for line in axes.lines) == pytest.approx([0.1, 0.15, 0.8, 0.9])
