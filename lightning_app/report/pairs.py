"""Which plain nets belong to which residual nets: arms of one net, data and loss but for that, and in them nets of one seed.

Plain and residual of different depth or width are not compared; learning rates they may have of their own, as in the paper.
Of several such arms those with the same training belong together, then those of one run. Names decide only what is still open,
or where there is no configuration; where they are ambiguous nothing is paired: a difference between the wrong arms looks
as good as one between the right ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lightning_app.compare.sides import MEASURING
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.runs.configuration import compared, flatten
from lightning_app.runs.reader import KIND

DIVERGED = "because a net diverged."  # how a notice of seeds that were left out ends

NOT_TRAINING = ("model.net", "model.arms.", "trainer.callbacks")  # beginnings of keys
Facts = Mapping[str, str]
Sides = tuple[list[str], list[str]]  # labels of plain and of residual groups


@dataclass(frozen=True)
class Pair:
    """A plain and a residual arm; net i of both has seed i."""

    label: str
    seeds: tuple[int | None, ...]  # None: the only net of each arm, of whatever seed
    plain: tuple[PageNet, ...]
    residual: tuple[PageNet, ...]

    @property
    def nets(self) -> tuple[PageNet, ...]:
        """Plain nets, then residual ones."""
        return self.plain + self.residual


def pairs(page: PageData, least: int = 2) -> tuple[list[Pair], list[str]]:
    """The pairs that share at least so many seeds, and messages on what was left out and why."""
    found, notices = [], []
    sides = counterparts(page)
    if not all(any(side) for side in zip(*sides)):
        return [], []  # of a page of one kind there is nothing to say
    for plain, residual in sides:
        if not plain or not residual:
            notices.append(f"{' and '.join(plain + residual)}: no {'residual' if plain else 'plain'} counterpart.")
        elif len(plain) > 1 or len(residual) > 1:
            notices.append(
                f"Not paired: neither configurations nor names say which of {' and '.join(plain)} belongs to which of "
                f"{' and '.join(residual)}."
            )
        else:
            pair, left_out = _pair(plain[0], residual[0], page)
            notices += left_out
            found += [pair] if len(pair.seeds) >= least else []
    return found, notices


def counterparts(page: PageData) -> list[Sides]:
    """Plain and residual groups that belong together, one of each side where that is certain.

    A twin (of the same initial function as its original) stands for its arm only where that has no net of its own: with its
    original it is compared in a section of its own.
    """
    arms = {name: most_telling(nets) for name, nets in page.groups.items()}
    groups = {name: net for name, net in arms.items() if net.residual is not None}
    sides = _sides(groups, _architecture)
    finer_facts: tuple[Callable[[PageNet], Facts], ...] = (
        lambda net: {"training": repr(sorted(training_of(net).items()))},  # equal only where no option is missing
        training_of,
        lambda net: {"run": net.run.label},
        lambda net: {"stem": _stem(net)},
    )
    for finer in finer_facts:
        sides = [part for each in sides for part in _split(each, groups, finer)]
    return sides


def most_telling(nets: Iterable[PageNet]) -> PageNet:
    """The net of an arm of which most is recorded: the run of its first seed may be older than others, or lack a file."""
    return max(nets, key=lambda net: (net.residual is not None, not net.guessed, bool(net.run.config)))


def _sides(groups: dict[str, PageNet], facts_of: Callable[[PageNet], Facts]) -> list[Sides]:
    """Groups that agree together, in order; of each side those with weights of their own, else the twins.

    Compared is what both have: the configuration of an older commit lacks options that a newer one writes.
    """
    together: list[tuple[list[Facts], list[list[str]]]] = []

    for name, net in groups.items():
        facts = facts_of(net)
        agreeing = next((each for each in together if all(_agree(facts, other) for other in each[0])), None)
        if agreeing is None:
            agreeing = ([], [[], [], [], []])
            together.append(agreeing)
        agreeing[0].append(facts)
        agreeing[1][2 * bool(net.residual) + bool(net.twin_of)].append(name)
    return [(plain or plain_twins, own or twins) for _, (plain, plain_twins, own, twins) in together]


def _agree(one: Facts, other: Facts) -> bool:
    return all(one[key] == other[key] for key in one.keys() & other.keys())


def _split(sides: Sides, groups: dict[str, PageNet], facts_of: Callable[[PageNet], Facts]) -> list[Sides]:
    """Finer, where a side has several groups; groups that would lose their counterpart by it stay together."""
    if max(map(len, sides)) < 2 or not all(sides):
        return [sides]
    finer = _sides({name: groups[name] for side in sides for name in side}, facts_of)
    rest = [part for part in finer if not all(part)]
    together: Sides = ([name for plain, _ in rest for name in plain], [name for _, own in rest for name in own])
    return [*(part for part in finer if all(part)), *([together] if any(together) else [])]


def _architecture(net: PageNet) -> Facts:
    """The net but for plain or residual, which must be equal in all, its data and its loss.

    Without a configuration: the class and depth beside which it was trained, or, trained alone, its name without these words.
    """
    if recorded := _recorded(net):
        own = {key: value for key, value in recorded.items() if key.partition(".")[0] == "net"}
        return {**recorded, "net": repr(sorted(own.items()))}
    if net.class_path and len(net.run.nets) > 1:
        return {"net": repr((net.run.label, net.class_path, net.depth))}
    return {"net": _stem(net)}


def _recorded(net: PageNet) -> Facts:
    """What its configuration says of the net but for plain or residual, its data and its loss; nothing if it names no net."""
    original = next((other for other in net.run.nets if other.name == net.twin_of), net)
    if not (spec := original.spec.get("net")):
        return {}
    task = (leaf for leaf in net.run.options.items() if leaf[0].startswith(("data.", "model.loss")))
    return _facts(leaf for leaf in (*flatten(spec, "net"), *task) if not leaf[0].endswith("init_args.residual"))


def training_of(net: PageNet) -> Facts:
    """The configuration but for seed, folder, nets, what only measures, and limits that a resume has raised."""
    return _facts(leaf for leaf in net.run.planned.items() if not leaf[0].startswith(NOT_TRAINING))


def net_of(net: PageNet) -> Facts:
    """Its class and arguments."""
    return _facts(compared({"net": net.spec.get("net")}).items())


def _facts(leaves: Iterable[tuple[str, object]]) -> Facts:
    """Values by key, but for what only measures; of a class its name, as its module may be spelled out or not."""
    facts = {key: value for key, value in leaves if key not in MEASURING}
    classes = {key for key in facts if key == "net" or key.endswith("class_path")}
    return {key: repr(str(value).rpartition(".")[2] if key in classes else value) for key, value in facts.items()}


def _stem(net: PageNet) -> str:
    return KIND.sub("", net.group).lower()


def _pair(plain: str, residual: str, page: PageData) -> tuple[Pair, list[str]]:
    """Nets that do not tell their seed are in no pair, unless they are the only ones."""
    arms = [page.groups[plain], page.groups[residual]]
    if all(len(nets) == 1 for nets in arms) and any(nets[0].seed is None for nets in arms):
        sides: list[dict[int | None, PageNet]] = [{None: nets[0]} for nets in arms]
    else:
        sides = [{net.seed: net for net in nets if net.seed is not None} for nets in arms]
    both = sorted(sides[0].keys() & sides[1].keys(), key=_order)
    # Seeds of an arm may be of several runs, with a configuration each.
    apart = [seed for seed in both if not _agree(*(_recorded(side[seed]) for side in sides))]
    shared = [seed for seed in both if seed not in apart]
    lost = [seed for seed in shared if any(side[seed].diverged is not None for side in sides)]
    kept = tuple(seed for seed in shared if seed not in lost)
    label, alone, notices = _label(plain, residual), sides[0].keys() ^ sides[1].keys(), []
    if alone:
        notices.append(f"{label}: {_seeds(alone)} in only one of the two, so in no pair.")
    if apart:
        notices.append(
            f"{label}: {_seeds(apart)} left out, because net, data or loss of the two differ in more than the skips."
        )
    if lost:
        notices.append(f"{label}: {_seeds(lost)} left out, {DIVERGED}")
    if len(kept) < 2:
        notices.append(f"{label}: fewer than two seeds in both, so no paired statistics.")
    return Pair(label, kept, *(tuple(side[seed] for seed in kept) for side in sides)), notices


def _label(plain: str, residual: str) -> str:
    """Both names, what they have in common before the last slash once.

    >>> _label("fig2/plain", "fig2/residual"), _label("pln20", "res20")
    ('fig2/plain − residual', 'pln20 − res20')
    """
    home, _, arm = residual.rpartition("/")
    return f"{plain} − {arm if plain.rpartition('/')[0] == home else residual}"


def _seeds(seeds: Iterable[int | None]) -> str:
    listed = [*map(str, sorted(seeds, key=_order))]
    if listed == ["None"]:
        return "the only pair"
    return f"seed{'s' if len(listed) > 1 else ''} {', '.join(listed)}"


def _order(seed: int | None) -> int:
    return -1 if seed is None else seed
