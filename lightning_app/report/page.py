"""Sections through the template: one HTML file that needs no other, no network, and is complete without its script."""

import gc
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from lightning_app.common.errors import MachineError, UserError
from lightning_app.common.files import with_folder, write_atomically
from lightning_app.common.safe_io import read_bytes
from lightning_app.common.scripts import policy
from lightning_app.common.text import visible
from lightning_app.plots.style import COLOURS
from lightning_app.report import interactive
from lightning_app.report.blocks import Section
from lightning_app.report.exports import write_exports
from lightning_app.report.page_data import PageData, gather
from lightning_app.report.sections import (
    configs,
    conventions,
    costs,
    curvature,
    cushions,
    ensembles,
    first,
    further,
    headline,
    layers,
    learning,
    maps,
    prediction,
    reproduced,
    seeds,
    signals,
    surface,
    twins,
    weights,
)
from lightning_app.runs import RunFolder
from lightning_app.runs.naming import parent_of, without_seed

# In the order of the page. What a section shows, its `families`, is not shown again by `further`, which has all other measures.
BEFORE = (learning, headline, seeds, twins, signals, weights, cushions, curvature, surface, ensembles, maps)
AFTER = (prediction, reproduced, conventions, layers, costs, configs)
REPORT = "report.html"
PAGES = (".html", ".htm")
OURS = b"<title>SkipScope: "  # which every page has had


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Python looks for garbage at every 700th new object. A page makes millions: a sixth of its time went into that."""
    usual = gc.get_threshold()
    gc.set_threshold(20_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@seldom_collected()
def write_report(
    runs: Sequence[RunFolder],
    out: Path | None = None,
    layer: str | None = None,
    export: Sequence[str] = (),
    verdicts: Sequence[Path] = (),
) -> Path:
    """Write one page on one or several runs.

    Args:
        runs: the runs, in the order of the page.
        out: the page, whose name ends in .html, or a folder to write report.html into. Without it the page lies in the
            run's folder, of several runs in the deepest folder that holds them all.
        layer: whose cushions to show as histograms; layer10, or else the middle one, if not given.
        export: of `exports.FORMATS`: figures and tables as files, too, in a folder beside the page.
        verdicts: folders of artefacts that `reproduce` has judged, to be shown, too.

    Returns:
        Where the page is.

    Raises:
        UserError: no runs, a layer that was not measured, or a file of another kind in place of the page.
        MachineError: if the page's folder cannot be written, before anything is read.
        ValueError: from the run folder, if a run cannot be read.
    """
    if not runs:
        got = (
            f"verdicts of `reproduce` only ({verdicts[0]}): name a run whose page shows them, too"
            if verdicts
            else "none"
        )
        raise UserError(f"expected at least one run to report on, got {got}.")
    target = _target(runs, out)
    page = gather(runs, layer, verdicts)
    sections = sections_of(page)
    write_atomically(with_folder(target), render(sections, title_of(runs), page).encode())
    if export:
        write_exports(sections, export_folder(target), export)
    return target


def _target(runs: Sequence[RunFolder], out: Path | None) -> Path:
    """Where the page will be, as `write_report` says; raises what it says of that."""
    target = out or (runs[0].path if len(runs) == 1 else parent_of([run.path for run in runs]))
    if target.suffix.lower() not in PAGES or target.is_dir():
        if os.path.lexists(target) and not target.is_dir():
            raise UserError(
                f"expected a page (*.html) or a folder for it, got {target}: a file, which is not overwritten."
            )
        target = target / REPORT
    if out is not None and target.is_file() and target.stat().st_size and OURS not in read_bytes(target):
        raise UserError(
            f"expected a new page, or one that report has written, got {target}: a page of another kind, which is not "
            "overwritten."
        )
    home = next(folder for folder in target.parents if folder.exists())  # where its folder is, or will be made
    if not home.is_dir() or not os.access(home, os.W_OK):  # known before minutes of work
        raise MachineError(
            f"{target} cannot be written: correct the permissions, or give another file or folder with --out."
        )
    return target


def title_of(runs: Sequence[RunFolder]) -> str:
    """The names of the first four runs; runs whose names differ only in the seed share one."""
    labels = [run.label for run in runs]
    arms = [*dict.fromkeys(map(without_seed, labels))]
    names = arms if len(labels) > 1 and all(arms) else labels
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def export_folder(page: Path) -> Path:
    """Beside the page: report.html has its files in report-export/."""
    return page.with_name(f"{page.stem}-export")


def sections_of(page: PageData) -> list[Section]:
    """The sections that these runs have, in order."""
    before, after = ([module.section(page) for module in modules] for modules in (BEFORE, AFTER))
    shown = {family for section in (*before, *after) if section for family in section.families}
    sections = [section for section in (*before, further.section(page, shown), *after) if section]
    return [first.section(page, {anchor for section in sections for anchor in section.anchors}), *sections]


def render(sections: Sequence[Section], title: str, page: PageData) -> str:
    """The page as text, byte by byte the same for the same runs."""
    script = interactive.script()
    arms = interactive.arms(page.groups)
    nets = [net for arm in arms for net in arm.nets]
    return _template().render(
        title=title,
        sections=sections,
        colours=COLOURS,
        arms=arms,
        seeds=sorted({seed for _, seed in nets if seed is not None}),
        names=[*dict.fromkeys([*(arm.arm for arm in arms), *(name for name, _ in nets)])],
        script=script,
        policy=policy(script),
    )


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    """Everything is escaped, whatever it is, but the SVG that `panels` made; nothing stays invisible."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: type(value)(visible(value)) if isinstance(value, str) else value,
    )
    # A narrow page may break a long dotted or hyphenated name.
    breakable = partial(re.compile(r"(?<!\d)([._/-])(?=\w)").sub, r"\1<wbr>")
    environment.globals |= {
        "arms_attribute": interactive.arms_attribute,
        "legend_attribute": interactive.legend_attribute,
    }
    environment.filters |= {"svg": Markup, "breakable": lambda text: Markup(breakable(str(escape(text))))}
    return environment.get_template("page.html.jinja")
