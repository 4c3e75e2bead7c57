"""Spectra of the Hessian as runs hold them: under which prefixes, of which parts, and which eigenvalues can be relied on."""

import itertools
import math
from collections.abc import Iterable, Sequence

from lightning_app.report.evidence import Evidence, Net

__all__ = ["asked_samples", "doubtful", "ends", "last_epoch", "parts", "prefixes"]

MARK = "/unconverged"  # every spectrum logs it, and nothing else does
CALLBACK = "HessianSpectrum"


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
                lambda key: f"{prefix}/{key}" in names, (f"{end}{place}" for place in itertools.count(1))
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


def asked_samples(evidence: Evidence, prefix: str) -> list[int]:
    """Of how many probe samples the configurations ask for the mean loss; empty where they do not say."""
    callbacks = [each for run in evidence.runs for each in _callbacks(run.config)]
    asked = [each.get("init_args") or {} for each in callbacks if str(each.get("class_path")).endswith(CALLBACK)]
    counts = [args.get("samples") for args in asked if args.get("prefix") == prefix]
    return sorted({count for count in counts if isinstance(count, int)})


def _callbacks(config: dict) -> list[dict]:
    found = (config.get("trainer") or {}).get("callbacks") or []
    return [each for each in found if isinstance(each, dict)]
