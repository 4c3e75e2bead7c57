"""Which plain nets belong to which residual nets: groups whose names differ in that word only, and in them nets of one seed.

Plain and residual of different depth, width or recipe are not compared, and where names leave two readings neither is
chosen: a difference between the wrong arms looks as good as one between the right ones.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from lightning_app.report.evidence import Evidence, Net
from lightning_app.report.headline import diverged

__all__ = ["Pair", "pairs", "stems"]

KIND = re.compile(r"(plain|pln|residual|resnet|res)(net)?", re.IGNORECASE)


@dataclass(frozen=True)
class Pair:
    """A plain and a residual arm; net i of both has seed i."""

    label: str
    seeds: tuple[int | None, ...]  # None: the only net of each arm, of whatever seed
    plain: tuple[Net, ...]
    residual: tuple[Net, ...]

    @property
    def nets(self) -> tuple[Net, ...]:
        return self.plain + self.residual


def pairs(evidence: Evidence, least: int = 2) -> tuple[list[Pair], list[str]]:
    """The pairs that share at least so many seeds, and sentences on what was left out and why."""
    found, said = [], []
    for plain, residual in stems(evidence).values():
        if not plain or not residual:
            said.append(f"{_words(plain + residual)}: no {'residual' if plain else 'plain'} counterpart of this name.")
        elif len(plain) > 1 or len(residual) > 1:
            said.append(f"Which of {_words(plain)} belongs to which of {_words(residual)} is not told by their names.")
        else:
            pair, sentences = _pair(plain[0], residual[0], evidence)
            said += sentences
            found += [pair] if len(pair.seeds) >= least else []
    return found, said


def stems(evidence: Evidence) -> dict[str, tuple[list[str], list[str]]]:
    """Plain and residual groups by what is left of their names without these words."""
    stems: dict[str, tuple[list[str], list[str]]] = {}
    for group, nets in evidence.groups.items():
        if nets[0].kind in ("plain", "residual"):
            sides = stems.setdefault(KIND.sub("", group).lower(), ([], []))
            sides[nets[0].kind == "residual"].append(group)
    return stems


def _pair(plain: str, residual: str, evidence: Evidence) -> tuple[Pair, list[str]]:
    sides = _by_seed(evidence.groups[plain], evidence.groups[residual])
    shared = sorted(sides[0].keys() & sides[1].keys())
    lost = [seed for seed in shared if any(diverged(side[seed]) is not None for side in sides)]
    kept = tuple(seed for seed in shared if seed not in lost)
    label = _label(plain, residual)
    pair = Pair(label, kept, *(tuple(side[seed] for seed in kept) for side in sides))
    return pair, _left_out(label, kept, lost, sides[0].keys() ^ sides[1].keys())


def _by_seed(*sides: list[Net]) -> list[dict[int | None, Net]]:
    """Nets that do not tell their seed are in no pair, unless they are the only ones."""
    if all(len(nets) == 1 for nets in sides) and any(nets[0].seed is None for nets in sides):
        return [{None: nets[0]} for nets in sides]
    return [{net.seed: net for net in nets if net.seed is not None} for nets in sides]


def _label(plain: str, residual: str) -> str:
    """Both names, what they have in common before the last slash once.

    >>> _label("fig2/plain", "fig2/residual"), _label("pln20", "res20")
    ('fig2/plain − residual', 'pln20 − res20')
    """
    home, _, arm = residual.rpartition("/")
    return f"{plain} − {arm if plain.rpartition('/')[0] == home else residual}"


def _left_out(
    label: str, kept: Iterable[int | None], lost: Iterable[int | None], alone: Iterable[int | None]
) -> list[str]:
    said = []
    if alone:
        said.append(f"{label}: {_seeds(alone)} in one of the two only, and so in no pair.")
    if lost:
        said.append(f"{label}: {_seeds(lost)} left out, because a net diverged.")
    if len([*kept]) < 2:
        said.append(f"{label}: fewer than two seeds in both, so no paired statistics.")
    return said


def _seeds(seeds: Iterable[int | None]) -> str:
    listed = [*map(str, sorted(seeds))]
    if listed == ["None"]:
        return "the only pair"
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(listed)}"


def _words(groups: Iterable[str]) -> str:
    return " and ".join(groups)
