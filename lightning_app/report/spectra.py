"""Spectra of the Hessian as runs hold them: under which prefixes, of which parts, which eigenvalues converged, and tables."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_app.common.numbers import epoch_text
from lightning_app.report.blocks import Cell, Table, cell, mean_cell
from lightning_app.report.page_data import PageData, PageNet

MARK = "/unconverged"  # every spectrum logs it, and nothing else does
CALLBACK = "HessianSpectrum"
MATRICES = {
    "hessian": "the second derivative",
    "gauss_newton": "the Gauss-Newton matrix",
    "empirical_fisher": "the empirical Fisher matrix",
}
ENDS = {"top": "largest", "bottom": "smallest"}
ORDINALS = {1: "", 2: "2nd ", 3: "3rd "}
FIELDS = {  # below the eigenvalues; these heads do not break, or many seeds would squeeze them
    "unconverged": "Not converged",
    "trace": "Trace",
    "frobenius": "‖H‖, Frobenius",
    "index_low": "Share of λ < 0, at least",
    "index_high": "Share of λ < 0, at most",
    "unresolved": "Share of unresolved sign",
    "condition10_low": "|λ|max / |λ|10 %, at least",
    "condition10_high": "|λ|max / |λ|10 %, at most",
    "id/leading": "Leading, on ID entries",
    "dimension": "Parameters",
    "products": "Products H v",
}
OF_PARTS = {"top1": "λmax", "bottom1": "λmin"} | {key: FIELDS[key] for key in FIELDS if key != "id/leading"}
ERRORS = {"trace": "trace_error", "frobenius": "frobenius_error"}
NOT_CONVERGED, NO_BOUND = "not converged", "no upper bound"
UPPER = "condition10_high"  # which may have none; its lower end is infinite where the percentile is 0
ENDLESS = "Spectra without this bound"
OF_ENDLESS = (
    f" {ENDLESS}: at how many of all epochs the condition number has no finite upper end, as the percentile may be 0."
)
CAPTION = (
    "At the last epoch with a spectrum. ± beside an eigenvalue: some eigenvalue of H lies within this distance. It is "
    "the norm of the residual, and at least the rounding error (in single precision 8e-6 of the largest |λ|). “Not "
    "converged”: the residual exceeds the requested share of |λ|; do not rely on such a number. ± beside trace and norm: "
    "one standard error over random starts. No ±: computed exactly. Leading, on ID entries: share of the leading "
    "eigenvector’s square that lies there; beside it, what it would be if spread evenly over all parameters."
)
PARTS = (
    "The same for diagonal blocks of H: of the ID entries (id), of all other parameters (rest), and of the weights and "
    "biases of one layer. An eigenvalue of about 0, such as the smallest of most layers, does not converge, because "
    "convergence is measured relative to its own size."
)


def prefixes(nets: Iterable[PageNet]) -> list[str]:
    """``hessian`` and whatever else a run calls a spectrum of a whole net, in the order of the log."""
    found = _marked(nets)
    return [prefix for prefix in found if not any(prefix.startswith(f"{other}/") for other in found)]


def parts(nets: Sequence[PageNet], prefix: str) -> list[str]:
    """``id``, ``rest``, ``layer01``, ...: parts of the nets with a spectrum of their own, in the order of the log."""
    return [name.removeprefix(f"{prefix}/") for name in _marked(nets) if name.startswith(f"{prefix}/")]


def _marked(nets: Iterable[PageNet]) -> list[str]:
    return [*dict.fromkeys(name.removesuffix(MARK) for net in nets for name in net.names if name.endswith(MARK))]


def last_epoch(net: PageNet, prefix: str) -> float | None:
    """The last epoch with a spectrum; None without any."""
    last = net.final(prefix + MARK)
    return None if last is None else last.epoch


def ends(nets: Iterable[PageNet], prefix: str) -> dict[str, list[str]]:
    """Names of the eigenvalues at either end, from the outermost on: ``top`` -> ``top1``, ``top2``, ..."""
    logged = {name.removeprefix(f"{prefix}/") for net in nets for name in net.names}
    ranks = range(1, len(logged) + 1)
    return {end: [*itertools.takewhile(logged.__contains__, (f"{end}{rank}" for rank in ranks))] for end in ENDS}


def doubtful(net: PageNet, prefix: str, epoch: float | None) -> set[str]:
    """Which of the eigenvalues at the ends did not converge.

    An eigenvalue has converged if residual / |eigenvalue| is below a bound, the same for all. So the ones that ``unconverged``
    counts are those with the largest ratios.
    """
    number = net.at(prefix + MARK, epoch)
    if number is None or not math.isfinite(number):
        return set()

    def ratio(key: str) -> float:
        eigenvalue, residual = net.at(f"{prefix}/{key}", epoch), net.at(f"{prefix}/{key}_residual", epoch)
        if eigenvalue is None or not residual:
            return 0.0
        return residual / abs(eigenvalue) if eigenvalue else math.inf

    keys = [key for keys in ends([net], prefix).values() for key in keys]
    return set(sorted(keys, key=ratio, reverse=True)[: int(number)])


def samples_of(page: PageData, prefix: str) -> list[int]:
    """How many probe samples the mean loss is over, by the configurations; empty where they do not say."""
    found = set()
    for options, arguments in _asked(page, prefix):
        # The probe has no more than its own size and the limit of training.
        limits = [options.get(f"data.init_args.{limit}") for limit in ("probe_size", "train_limit")]
        if isinstance(asked := options.get(f"{arguments}.samples"), int):
            found.add(min([asked, *(limit for limit in limits if isinstance(limit, int))]))
    return sorted(found)


def matrix_of(page: PageData, prefix: str) -> str:
    """The matrix whose eigenvalues these are: by the configurations, else by the prefix, else the Hessian."""
    asked = _asked(page, prefix)
    found = {str(options.get(f"{arguments}.matrix", "hessian")) for options, arguments in asked} or {prefix}
    return " or ".join(MATRICES.get(matrix, MATRICES["hessian"]) for matrix in sorted(found))


def _asked(page: PageData, prefix: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Options of runs, and in each the key of the arguments of the callback that logs under the prefix.

    That is named after its matrix, unless it has a name of its own.
    """
    for options in (run.options for run in page.runs):
        for key, value in options.items():
            if key.startswith("trainer.callbacks.") and key.endswith(".class_path") and str(value).endswith(CALLBACK):
                arguments = key.removesuffix("class_path") + "init_args"
                own, matrix = (options.get(f"{arguments}.{name}", "hessian") for name in ("prefix", "matrix"))
                if (matrix if own == "hessian" else own) == prefix:
                    yield options, arguments


def table(page: PageData, prefix: str, title: str) -> Table:
    """A column a net; where an arm has several seeds, their mean and standard deviation beside them."""
    names = {
        key: f"λ, {ORDINALS.get(rank, f'{rank}th ')}{ENDS[end]}"
        for end, keys in ends(page.nets, prefix).items()
        for rank, key in enumerate(keys, start=1)
    }
    names |= {key: head for key, head in FIELDS.items() if page.having(f"{prefix}/{key}").nets}
    columns = page.having(prefix + MARK).with_means()
    heads = [Cell(head.replace(" ", "\u00a0")) for head in ("Epoch", *names.values())]
    rows = [[*row] for row in zip(heads, *(_column(nets, prefix, [*names]) for _, nets in columns), strict=True)]
    highs = [[high for net in nets for high in net.series(f"{prefix}/{UPPER}")] for _, nets in columns]
    if endless := any(math.inf in each for each in highs):
        counts = [Cell(f"{each.count(math.inf)} of {len(each)}" if each else "–") for each in highs]
        rows.insert([*names].index(UPPER) + 2, [Cell(ENDLESS.replace(" ", "\u00a0")), *counts])
    return Table(CAPTION + OF_ENDLESS * endless, ["quantity", *(label for label, _ in columns)], rows, title=title)


def tables_of_parts(page: PageData, prefix: str) -> list[Table]:
    """A row a part, of the first net of each group that has such spectra; none where no part has one."""
    tables = []
    for net in page.firsts(lambda net: parts([net], prefix)):
        prefixes = {"all parameters": prefix} | {name: f"{prefix}/{name}" for name in parts([net], prefix)}
        epoch = last_epoch(net, prefix)
        rows = [[Cell(name), *_entries(net, each, [*OF_PARTS], epoch)] for name, each in prefixes.items()]
        title = f"{net.label}, {prefix}, epoch {_spelled(epoch)}"
        tables.append(Table(PARTS, ["part", *OF_PARTS.values()], rows, title))
    return tables


def _column(nets: Sequence[PageNet], prefix: str, names: Sequence[str]) -> list[Cell]:
    """Of one net, or of seeds at one epoch: a dash where these are not equally far."""
    epoch, *others = {last_epoch(net, prefix) for net in nets}
    if others:
        return [Cell("–")] * (1 + len(names))
    if len(nets) == 1:
        return [Cell(_spelled(epoch)), *_entries(nets[0], prefix, names, epoch)]
    bad = Counter(key for net in nets for key in doubtful(net, prefix, epoch))
    cells = [Cell(_spelled(epoch))]
    for key in names:  # with how many seeds did not converge; no mean of infinite ends
        values = [net.at(f"{prefix}/{key}", epoch) for net in nets]
        mean = replace(mean_cell(values), note=f"{bad[key]} {NOT_CONVERGED}" if bad[key] else "")
        endless = NO_BOUND if key == UPPER else ""
        cells.append(cell(math.inf, endless) if math.inf in values else mean)
    return cells


def _spelled(epoch: float | None) -> str:
    return "–" if epoch is None else epoch_text(epoch)


def _entries(net: PageNet, prefix: str, names: Sequence[str], epoch: float | None) -> list[Cell]:
    bad = doubtful(net, prefix, epoch)
    found = {key: net.at(f"{prefix}/{key}", epoch) for key in names}
    return [cell(number, _note(net, prefix, key, epoch, number, key in bad)) for key, number in found.items()]


def _note(net: PageNet, prefix: str, key: str, epoch: float | None, number: float | None, bad: bool) -> str:
    """What is to be known with the number."""
    if key == UPPER and number == math.inf:
        return NO_BOUND
    if key == "unconverged":
        return f"of {sum(map(len, ends([net], prefix).values()))}"
    if key == "id/leading":  # how much of it there would be if it were spread evenly, where ID entries were counted
        count, size = net.final("weight_mass/id_count"), net.at(f"{prefix}/dimension", epoch)
        return f"evenly {count.value / size:.2g}" if count and size else ""
    error = net.at(f"{prefix}/{ERRORS.get(key, f'{key}_residual')}", epoch)
    notes = [f"± {float(f'{error:.2g}'):g}"] if error else []
    return ", ".join(notes + [NOT_CONVERGED] * bad)
