"""How far the runs of a page are, how good their nets are at the end, and what it took, in sentences."""

import math
from collections import Counter
from collections.abc import Sequence

from lightning_app.common.numbers import MISSING, duration, plural, span
from lightning_app.report.figures import joined
from lightning_app.report.page_data import PageData, PageNet
from lightning_app.report.sections.costs import COST, EPOCH
from lightning_app.runs.configuration import limits_on_data
from lightning_app.runs.reader import Final, Run

MOST = 4  # runs or groups named


def outcome(page: PageData) -> str:
    """The sentences, without those of which nothing was logged."""
    return " ".join(filter(None, (_progress(page), limits(page.runs), _errors(page), _time(page.runs))))


def _progress(page: PageData) -> str:
    runs = plural(len(page.runs), "run")
    epochs = sorted({net.epoch for net in page.nets}) or [0]
    length = plural(epochs[-1], "epoch") if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]} epochs"
    # Of loops of one's own, whose epochs may not be known.
    if epochs == [0] and any(steps := sorted({run.last_step for run in page.runs if run.nets})):
        length = plural(steps[-1], "step") if len(steps) == 1 else f"{steps[0]} to {steps[-1]} steps"
    ended = {run: run.diverged for run in page.runs}
    stopped = [f"{run.label} ('{end[0]}' diverged in epoch {end[1]})" for run, end in ended.items() if end]
    open_ = [_planned(run) for run, end in ended.items() if run.finished is None and not end]
    states = [f"stopped: {_first(stopped)}"] * bool(stopped)
    states += [f"not marked as finished: {_first(open_)}"] * bool(open_)
    return f"{_nets(page)} in {runs}, {length}; {'; '.join(states) or 'finished'}."


def _nets(page: PageData) -> str:
    """How many, how deep, and on what data, as far as that is recorded."""
    depths = sorted({net.depth for net in page.nets if net.depth is not None})
    classes = filter(None, (run.options.get("data.class_path") for run in page.runs))
    data = {str(path).rpartition(".")[2] for path in classes}
    deep = f" of depth{'s' * (len(depths) > 1)} {joined(depths)}" if depths else ""
    return plural(len(page.nets), "net") + deep + (f" on {' and '.join(sorted(data))}" if data else "")


def limits(runs: Sequence[Run]) -> str:
    """Options that limit the data of training or evaluation; empty where there are none."""
    counts = Counter(f"{key} {value}" for run in runs for key, value in limits_on_data(run.config).items())
    said = [f"{each} ({count} of {len(runs)} runs)" if count < len(runs) else each for each, count in counts.items()]
    return f"Limits on the data: {_first(said)}." if said else ""


def _planned(run: Run) -> str:
    """A run without an end, and how far it is on its way where its configuration says so."""
    planned = run.options.get("trainer.max_epochs")
    done = max(run.last_epochs.values(), default=0)
    return f"{run.label} ({done} of {planned} epochs)" if isinstance(planned, int) and planned > 0 else run.label


def _errors(page: PageData) -> str:
    """The last test errors of each group, or validation errors where there are no others."""
    unseen = page.held_out
    ends = {
        group: [(net, last) for net in nets if (last := net.end(unseen.error))] for group, nets in page.groups.items()
    }
    shown = [f"{group} {_span(finals)}" for group, finals in ends.items() if finals]
    return f"Last {unseen.words} error: {_first(shown)}." if shown else ""


def _span(finals: Sequence[tuple[PageNet, Final]]) -> str:
    """Of a single net, else the lowest and the highest seed; with the epochs where some trained longer than that or others."""
    finite = [last.value for _, last in finals if math.isfinite(last.value)]
    ends = {last.epoch for _, last in finals if math.isfinite(last.value)}
    notes = [f"{len(finals)} seeds"] * (len(finals) > 1)
    notes += [f"{len(finals) - len(finite)} not finite"] * (len(finite) < len(finals))
    if len(ends) > 1 or any(last.epoch < net.epoch for net, last in finals):
        notes.append(f"epoch {joined(last.epoch for _, last in finals)}")
    return (span(finite, 3) if finite else MISSING) + f" ({', '.join(notes)})" * bool(notes)


def _time(runs: Sequence[Run]) -> str:
    epochs = sum(float(run.series(EPOCH).sum()) for run in runs)
    measures = sum(float(run.series(name).sum()) for run in runs for name in run.names() if name.startswith(COST))
    parts = [f"training and evaluation {duration(epochs)}"] * bool(epochs)
    parts += [f"measures {duration(measures)}"] * bool(measures)
    return f"Time taken: {', '.join(parts)}{' (sums over runs)' * (len(runs) > 1)}." if parts else ""


def _first(texts: Sequence[str]) -> str:
    rest = len(texts) - MOST
    return "; ".join(texts[:MOST]) + (f"; and {rest} more" if rest > 0 else "")
