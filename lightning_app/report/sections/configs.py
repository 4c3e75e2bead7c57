"""What was run: facts and configuration of each run, where they differ, and every number of the last epoch."""

import itertools
from collections.abc import Mapping

from lightning_app.common.safe_io import read_text
from lightning_app.report.blocks import Block, Cell, Section, Table, Text, csv_text
from lightning_app.report.page_data import PageData
from lightning_app.runs.configuration import changes, flatten, keys_that_differ
from lightning_app.runs.folder import CONFIG, MEMBERS
from lightning_app.runs.reader import Run

ABSENT = "–"


def section(page: PageData) -> Section:
    """Commands, versions and configurations of the runs, and the last value of every number."""
    configs = {run.label: run.config for run in page.runs}
    texts = {run: read_text(file) if (file := run.folder.path / CONFIG).exists() else "" for run in page.runs}
    shown = [Text(f"Configuration of {run.label}", text) for run, text in texts.items() if text]
    blocks: list[Block] = [_facts(texts), *_differences(configs), *shown, _everything(page)]
    notices = [f"{label} has no {CONFIG}." for label, config in configs.items() if not config]
    if guessed := [net.label for net in page.nets if net.guessed]:
        nets = f"{', '.join(guessed[:4])}{', …' if len(guessed) > 4 else ''}"
        notices.append(f"Plain or residual is guessed from names, because no {MEMBERS} says it: {nets}.")
    # Everywhere else the page names the last ones.
    notices += [f"{run.label}: {changes(each)}." for run in page.runs for each in run.changed_options]
    for run in page.runs:  # all other sections that read files come before this one, but that of keys.csv
        _ = run.described, run.finished
        notices += [f"Left out, {message}" for message in run.damage]
    return Section("configs", "What was run", blocks=blocks, notices=notices, short="Settings", folded=True)


def _facts(texts: Mapping[Run, str]) -> Table:
    """With the lines on top of config.yaml, where the command line notes itself, the commit and versions."""
    rows = []
    for run, text in texts.items():
        head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        facts = [", ".join(net.name for net in run.nets)]
        facts += [f"{run.log[column].max():.10g}" if len(run.log) else "" for column in ("epoch", "step")]
        facts.append("\n".join(filter(None, (line.lstrip("# ").rstrip() for line in head))))
        rows.append([Cell(run.label), *(Cell(fact or ABSENT) for fact in facts)])
    caption = "Completed epochs and optimizer steps at the end of the log; command and versions as the configuration notes them."
    return Table(caption, ["run", "nets", "epochs", "steps", "command and versions"], rows)


def _differences(configs: dict[str, dict]) -> list[Table]:
    """Keys whose values differ between runs, one column a run."""
    if len(configs) < 2:
        return []
    flat = {label: dict(flatten(config)) for label, config in configs.items()}
    differing = keys_that_differ(flat.values(), ABSENT)
    caption = f"All options that differ; {ABSENT}: not set."
    caption = caption if differing else "The configurations are equal."
    rows = [[Cell(key), *(Cell(str(values.get(key, ABSENT))) for values in flat.values())] for key in differing]
    return [Table(caption, ["key", *flat], rows, title="Differences between the runs")]


def _everything(page: PageData) -> Text:
    """Each number's last value: also what no section above knows of."""
    rows = []
    for run in page.runs:
        rows += [
            (run.label, *row) for row in run.last_rows[["member", "name", "epoch", "value"]].itertuples(index=False)
        ]
    return Text("The last value of every number logged", csv_text(("run", "net", "name", "epoch", "value"), rows))
