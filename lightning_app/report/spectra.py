"""Spectra of the Hessian as runs hold them: under which prefixes, of which parts, which eigenvalues converged, and tables."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_app.report.blocks import Cell, Table, cell, mean_cell
from lightning_app.report.page_data import Net, PageData

__all__ = ["last_epoch", "parts", "prefixes", "requested_samples", "table", "tables_of_parts"]

MARK = "/unconverged"  # every spectrum logs it, and nothing else does
CALLBACK = "HessianSpectrum"
ENDS = {"top": "largest", "bottom": "most negative"}
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
CAPTION = (
    "At the last epoch with a spectrum. ± beside an eigenvalue: the norm of its residual, and at least its rounding (in single "
    "precision 8e-6 of the largest |λ|); some eigenvalue of H lies within that distance. “Not converged”: the residual "
    "exceeds the requested share of |λ|; such a number is not to be relied on. ± beside trace and norm: one standard "
    "error, over random starts. No ±: computed exactly. Leading, on ID entries: the share of the leading eigenvector's "
    "square; spread evenly over all parameters it would be the small number."
)
PARTS = (
    "The same of diagonal blocks of H: of the ID entries (id), of all other parameters (rest), of the weights and biases of one "
    "layer. An eigenvalue of about 0, as the smallest of a layer mostly is, does not converge by a measure relative to itself."
)


def prefixes(nets: Iterable[Net]) -> list[str]:
    """``hessian`` and whatever else a run calls a spectrum of a whole net, in the order of the log."""
    found = _marked(nets)
    return [prefix for prefix in found if not any(prefix.startswith(f"{other}/") for other in found)]


def parts(nets: Sequence[Net], prefix: str) -> list[str]:
    """``id``, ``rest``, ``layer01``, ...: parts of the nets with a spectrum of their own, in the order of the log."""
    return [name.removeprefix(f"{prefix}/") for name in _marked(nets) if name.startswith(f"{prefix}/")]


def _marked(nets: Iterable[Net]) -> list[str]:
    return [*dict.fromkeys(name.removesuffix(MARK) for net in nets for name in net.names if name.endswith(MARK))]


def last_epoch(net: Net, prefix: str) -> int | None:
    """The last epoch with a spectrum; None without any."""
    last = net.final(prefix + MARK)
    return None if last is None else last.epoch


def ends(nets: Iterable[Net], prefix: str) -> dict[str, list[str]]:
    """Names of the eigenvalues at either end, from the outermost on: ``top`` -> ``top1``, ``top2``, ..."""
    names = {name for net in nets for name in net.names}

    def logged(end: str) -> list[str]:
        return [
            *itertools.takewhile(
                lambda key: f"{prefix}/{key}" in names, (f"{end}{rank}" for rank in itertools.count(1))
            )
        ]

    return {end: logged(end) for end in ("top", "bottom")}


def doubtful(net: Net, prefix: str, epoch: int | None) -> set[str]:
    """Which of the eigenvalues at the ends did not converge.

    What counts as converged is a bound on residual over |eigenvalue|, the same for all, so that those which ``unconverged``
    counts are those with the largest ratios.
    """
    number = net.at(prefix + MARK, epoch)
    if number is None or not math.isfinite(number):
        return set()
    keys = [key for keys in ends([net], prefix).values() for key in keys]
    ratios = {key: _ratio(net, f"{prefix}/{key}", epoch) for key in keys}
    return set(sorted(ratios, key=lambda key: ratios[key], reverse=True)[: int(number)])


def _ratio(net: Net, name: str, epoch: int | None) -> float:
    eigenvalue, residual = net.at(name, epoch), net.at(f"{name}_residual", epoch)
    if eigenvalue is None or not residual:
        return 0.0
    return residual / abs(eigenvalue) if eigenvalue else math.inf


def requested_samples(page: PageData, prefix: str) -> list[int]:
    """How many probe samples the mean loss is over, by the configurations; empty where they do not say."""
    callbacks = [each for run in page.runs for each in _callbacks(run.config)]
    arguments = [each.get("init_args") or {} for each in callbacks if str(each.get("class_path")).endswith(CALLBACK)]
    counts = [args.get("samples") for args in arguments if args.get("prefix") == prefix]
    return sorted({count for count in counts if isinstance(count, int)})


def _callbacks(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = (config.get("trainer") or {}).get("callbacks") or []
    return [each for each in found if isinstance(each, dict)]


# -- tables ---------------------------------------------------------------------------------------------------------------


def table(page: PageData, prefix: str, title: str) -> Table:
    """A column a net; where an arm has several seeds, their mean and standard deviation beside them."""
    names = _eigenvalues(page.nets, prefix) | FIELDS
    names = {key: head for key, head in names.items() if any(f"{prefix}/{key}" in net.names for net in page.nets)}
    columns = [column for group, nets in page.groups.items() for column in _columns(group, nets, prefix, [*names])]
    heads = (Cell(head.replace(" ", "\u00a0")) for head in ["Epoch", *names.values()])
    rows = zip(heads, *(cells for _, cells in columns), strict=True)
    return Table(CAPTION, ["", *(label for label, _ in columns)], [list(row) for row in rows], title=title)


def tables_of_parts(page: PageData, prefix: str) -> list[Table]:
    """A row a part, of the first net of each group; none where no part has a spectrum."""
    found = [(net, parts([net], prefix)) for net in page.firsts()]
    return [_of_parts(net, prefix, names) for net, names in found if names]


def _eigenvalues(nets: Sequence[Net], prefix: str) -> dict[str, str]:
    return {
        key: f"λ, {ORDINALS.get(rank, f'{rank}th ')}{ENDS[end]}"
        for end, keys in ends(nets, prefix).items()
        for rank, key in enumerate(keys, start=1)
    }


def _columns(group: str, nets: Sequence[Net], prefix: str, names: Sequence[str]) -> list[tuple[str, list[Cell]]]:
    measured = [net for net in nets if last_epoch(net, prefix) is not None]
    each = [(net.label, _column(net, prefix, names)) for net in measured]
    if len(measured) < 2:
        return each
    return [*each, (f"{group}: mean ± sd of {len(measured)}", _means(measured, prefix, names))]


def _column(net: Net, prefix: str, names: Sequence[str]) -> list[Cell]:
    epoch = last_epoch(net, prefix)
    return [Cell(str(epoch)), *_entries(net, prefix, names, epoch)]


def _means(nets: Sequence[Net], prefix: str, names: Sequence[str]) -> list[Cell]:
    """Of one epoch only: a dash where the seeds are not equally far."""
    epochs = {last_epoch(net, prefix) for net in nets}
    if len(epochs) > 1:
        return [Cell("–")] * (1 + len(names))
    (epoch,) = epochs
    bad = Counter(key for net in nets for key in doubtful(net, prefix, epoch))
    values = {key: [net.at(f"{prefix}/{key}", epoch) for net in nets] for key in names}
    return [Cell(str(epoch)), *(_mean(values[key], bad[key]) for key in names)]


def _mean(values: Sequence[float | None], bad: int) -> Cell:
    """With how many seeds did not converge; no mean of infinite ends."""
    if math.inf in values:
        return cell(math.inf, NO_BOUND)
    return replace(mean_cell(values), note=f"{bad} {NOT_CONVERGED}" if bad else "")


def _of_parts(net: Net, prefix: str, names: Sequence[str]) -> Table:
    epoch = last_epoch(net, prefix)
    prefixes = {"all parameters": prefix, **{name: f"{prefix}/{name}" for name in names}}
    rows = [[Cell(name), *_entries(net, each, [*OF_PARTS], epoch)] for name, each in prefixes.items()]
    return Table(PARTS, ["part", *OF_PARTS.values()], rows, title=f"{net.label}, {prefix}, epoch {epoch}")


# -- one number -----------------------------------------------------------------------------------------------------------


def _entries(net: Net, prefix: str, names: Sequence[str], epoch: int | None) -> list[Cell]:
    bad = doubtful(net, prefix, epoch)
    found = {key: net.at(f"{prefix}/{key}", epoch) for key in names}
    return [cell(number, _note(net, prefix, key, epoch, number, key in bad)) for key, number in found.items()]


def _note(net: Net, prefix: str, key: str, epoch: int | None, number: float | None, bad: bool) -> str:
    """What is to be known with the number."""
    if key == "condition10_high" and number == math.inf:
        return NO_BOUND
    if key == "unconverged":
        return f"of {sum(map(len, ends([net], prefix).values()))}"
    if key == "id/leading":
        return _share_of_id(net, prefix, epoch)
    error = net.at(f"{prefix}/{ERRORS.get(key, f'{key}_residual')}", epoch)
    return ", ".join([*([f"± {float(f'{error:.2g}'):g}"] if error else []), *([NOT_CONVERGED] if bad else [])])


def _share_of_id(net: Net, prefix: str, epoch: int | None) -> str:
    """How much of the eigenvector would lie there if it were spread evenly, where weight mass counted ID entries."""
    count, size = net.final("weight_mass/id_count"), net.at(f"{prefix}/dimension", epoch)
    return f"evenly {count.value / size:.2g}" if count and size else ""
