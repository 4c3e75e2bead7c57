"""What was run: facts and configuration of each run, where they differ, and every number of the last epoch."""

from lightning_app.common.safe_io import read_text
from lightning_app.report.blocks import Block, Cell, Section, Table, Text, csv_text
from lightning_app.report.page_data import PageData, Run
from lightning_app.runs.configuration import flatten
from lightning_app.runs.folder import CONFIG, MEMBERS

__all__ = ["section"]

ABSENT = "–"


def section(page: PageData) -> Section:
    """Commands, versions and configurations of the runs, and the last value of every number."""
    configs = {run.label: run.config for run in page.runs}
    blocks: list[Block] = [_facts(page), *_differences(configs), *_texts(page), _everything(page)]
    missing = [f"{label} has no {CONFIG}." for label, config in configs.items() if not config]
    damage = [f"Left out, {message}" for run in page.runs for message in _damage(run)]
    return Section("configs", "What was run", blocks=blocks, notices=[*missing, *_guesses(page), *damage])


def _damage(run: Run) -> list[str]:
    """Files that could not be read. All other sections that read files come before this one, but that of keys.csv."""
    _ = run.described
    return run.damage


def _guesses(page: PageData) -> list[str]:
    guessed = [net.label for net in page.nets if net.guessed]
    nets = f"{', '.join(guessed[:4])}{', …' if len(guessed) > 4 else ''}"
    return [f"Plain or residual is guessed from names, as no {MEMBERS} records it: {nets}."] if guessed else []


def _facts(page: PageData) -> Table:
    rows = [
        [
            Cell(run.label),
            Cell(", ".join(net.name for net in run.nets) or ABSENT),
            Cell(str(run.log["epoch"].max()) if len(run.log) else ABSENT),
            Cell(str(run.log["step"].max()) if len(run.log) else ABSENT),
            Cell(_head(run) or ABSENT),
        ]
        for run in page.runs
    ]
    caption = (
        "Completed epochs and optimizer steps at the end of the log; the rest as noted on top of the configuration."
    )
    return Table(caption, ["run", "nets", "epochs", "steps", "command and versions"], rows)


def _head(run: Run) -> str:
    """Comment lines at the top of config.yaml, where the command line notes itself, the commit and versions."""
    head = []
    for line in _text(run).splitlines():
        if not line.startswith("#"):
            break
        head.append(line.lstrip("# ").rstrip())
    return "\n".join(filter(None, head))


def _text(run: Run) -> str:
    file = run.folder.path / CONFIG
    return read_text(file) if file.exists() else ""


def _differences(configs: dict[str, dict]) -> list[Table]:
    """Keys whose values differ between runs, one column a run."""
    if len(configs) < 2:
        return []
    flat = {label: dict(flatten(config)) for label, config in configs.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    differing = [key for key in keys if len({repr(values.get(key, ABSENT)) for values in flat.values()}) > 1]
    caption = (
        f"Every key of the configurations that differs; {ABSENT}: not set."
        if differing
        else "The configurations are equal."
    )
    rows = [[Cell(key), *(Cell(str(values.get(key, ABSENT))) for values in flat.values())] for key in differing]
    return [Table(caption, ["key", *flat], rows, title="Differences between the runs")]


def _texts(page: PageData) -> list[Text]:
    return [Text(f"Configuration of {run.label}", text) for run in page.runs if (text := _text(run))]


def _everything(page: PageData) -> Text:
    """Each number's last value: also what no section above knows of."""
    rows = []
    for run in page.runs:
        last = run.log.sort_values("epoch", kind="stable").drop_duplicates(["member", "name"], keep="last")
        rows += [(run.label, *row) for row in last[["member", "name", "epoch", "value"]].itertuples(index=False)]
    return Text("The last value of every number logged", csv_text(("run", "net", "name", "epoch", "value"), rows))
