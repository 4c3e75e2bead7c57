"""MkDocs hook: pages that are written elsewhere. Measures in docstrings, functions in modules, results in results/.

It adds structure and no words of its own about what is measured: those stand with the code.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import griffe
import yaml
from comments import MEASURES, comment_of, fields
from docstrings import EVERY_RUN, ROOT, SECTIONS, Documented, Option, documented, summary_of
from gallery import gallery_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from tutorial import notebooks, tutorial_page

sys.path.insert(0, str(ROOT))
from lightning_app.report.command import report

USE = """\
```python
from pytorch_lightning import Trainer

from callbacks import {name}

trainer = Trainer(callbacks=[{name}({option}={default})])
```

{where}

```yaml
trainer:
  {key}:
    - class_path: {name}
      init_args:
        {option}: {default}
```
"""


RUN_PAGES = {  # reports to try: file -> runs among the results
    "cifar10.html": "yu-tomasi/reduced/runs/depth20~*",
    "cifar10-200-epochs.html": "yu-tomasi/runs/depth20~*",
    "cifar10-batchnorm.html": "yu-tomasi/runs/full20early",
}
WRITTEN = {  # pages written by hand, and those of the papers, in the order in which they are listed
    "Use": {
        "Training": "training",
        "Optimizer, schedule, faults": "optimizing",
        "Interruptions and failures": "interruptions",
        "The report": "report",
        "Run folders and frames": "runs",
        "Comparing": "comparing",
        "Measure any model": "measuring",
        "In your project": "your-project",
        "Public names": "api",
    },
    "Results": {
        "Papers": "papers/index",
        "Gallery": "papers/gallery",
        "Reproducing a paper": "reproducing",
        "Evidence": "evidence",
        "Registered claims": "registration",
        "Quickstart": "quickstart-study",
        "First results": "first-results",
        "Findings": "findings",
        "The loss around the weights": "loss-surface",
        "A review of transformers": "transformers-review",
        "Where the figures come from": "results/README",
    },
    "Background": {
        "Conventions": "conventions",
        "How it is built": "architecture",
        "Speed": "speed",
        "Why it is fast": "why-fast",
        "On a GPU": "gpu",
        "Log": "log",
    },
}
COMMITTED = re.compile(r"\]\(\.\./results/([\w/-]+)/(table\.md|figure\.png)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs: results that lie beside the documentation are pages and figures of it."""
    return COMMITTED.sub(lambda found: f"](papers/{found[1]}{Path(found[2]).suffix}", markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs: add the generated pages, and say in which order all are listed."""
    every = documented()
    measures = [one for one in every if one.name not in EVERY_RUN]
    pages = {f"measures/{one.stem}.md": measure_page(one) for one in measures}
    pages["measures/every_run.md"] = every_run_page([one for one in every if one.name in EVERY_RUN])
    functions = {f"functions/{stem}.md": function_page(stem) for stem in module_stems()}
    listed = {"measures/index.md": measures_index(measures), "measures/keys.md": keys_index(every)}
    results, papers = result_pages(config)
    papers["registration.md"] = registration_page()
    papers["papers/gallery.md"] = gallery_page()
    pictures, tutorial = tutorial_pages(config)
    for path, content in (pages | functions | listed | papers | tutorial).items():
        files.append(File.generated(config, path, content=content))
    for file in [
        *results,
        *pictures,
        *(File.generated(config, name, content=report_page(runs)) for name, runs in RUN_PAGES.items()),
    ]:
        files.append(file)
    config.nav = [
        {"Start": "index.md"},
        {"Tutorial": [*tutorial]},
        *({group: [{title: f"{stem}.md"} for title, stem in each.items()]} for group, each in WRITTEN.items()),
        {"Measures": [*listed, *pages]},
        {"Functions": list(functions)},
    ]
    return files


def tutorial_pages(config: MkDocsConfig) -> tuple[list[File], dict[str, str]]:
    """Pictures and pages of the notebooks."""
    pictures, pages = [], {}
    for notebook in notebooks():
        pages[f"notebooks/{notebook.stem}.md"], found = tutorial_page(notebook)
        pictures += [File.generated(config, f"notebooks/{name}", content=one) for name, one in found.items()]
    return pictures, pages


def report_page(runs: str) -> str:
    """The interactive report of runs that are kept as evidence, which a pattern names."""
    with TemporaryDirectory() as folder:
        found = sorted((ROOT / "results").glob(runs))
        return report(found, Path(folder) / "page.html").read_text(encoding="utf-8")


# Measures


def measure_page(one: Documented) -> str:
    """All that the docstring says, in the order of every measure."""
    return "\n\n".join([f"# {one.name}", one.summary, one.description, *body(one, "##"), behind(one)])


def every_run_page(those: list[Documented]) -> str:
    """What is logged and printed of every run."""
    parts = [[f"## {one.name}", one.summary, *body(one, "###")] for one in those]
    return "\n\n".join(["# What every run logs", *(text for part in parts for text in part)])


def body(one: Documented, level: str) -> list[str]:
    """The sections, with the fields of dataclasses behind the keys, options and use."""
    parts = []
    for title, heading in SECTIONS.items():
        if title in one.sections:
            parts += [f"{level} {heading}", one.sections[title]]
        if title == "Keys":
            parts += [fields_table(one, record, f"{level}#") for record in one.records]
        if title == "Cost":
            parts.append("Measured ratios: [Speed](../speed.md).")
    if one.options:
        parts += [f"{level} Options", options_table(one.options), f"{level} Use", use(one)]
    return parts


def fields_table(one: Documented, record: griffe.Class, heading: str) -> str:
    rows = [(f"`{field.name}`", f"`{field.annotation}`", one.linked(comment_of(field))) for field in fields(record)]
    return f"{heading} Fields of {record.name}\n\n{summary_of(record)}\n\n{table(('field', 'type', 'meaning'), rows)}"


def options_table(options: list[Option]) -> str:
    rows = [
        (f"`{one.name}`", f"`{one.annotation}`", f"`{one.default}`", " ".join(one.meaning.split())) for one in options
    ]
    return table(("option", "type", "default", "meaning"), rows)


def use(one: Documented) -> str:
    # when it measures, else the first
    shown = min(one.options, key=lambda option: not option.name.startswith("every_n"))
    key, where = (
        ("callbacks", "It is in `configs/base.yaml`, whose list `callbacks` replaces:")
        if one.name in basic()
        else ("callbacks+", "To be appended to what `configs/base.yaml` has:")
    )
    return USE.format(name=one.name, option=shown.name, default=shown.default, key=key, where=where)


@cache
def basic() -> frozenset[str]:
    """Callbacks under every run."""
    base = yaml.safe_load((ROOT / "configs" / "base.yaml").read_text())
    return frozenset(callback["class_path"] for callback in base["trainer"]["callbacks"])


def behind(one: Documented) -> str:
    lines = [f"* [`{function.name}`][{function.path}]: {summary_of(function)}" for function in one.behind]
    return "\n".join(["## Functions behind it", "", *lines])


def measures_index(measures: list[Documented]) -> str:
    rows = [(f"[{one.name}]({one.stem}.md)", one.summary) for one in measures]
    rows.append((f"[{', '.join(EVERY_RUN)}](every_run.md)", "What every run logs and shows."))
    return f"# Measures\n\n{table(('callback', 'what'), rows)}\n\nLooking for a key? [All of them](keys.md)."


def keys_index(every: list[Documented]) -> str:
    """Every key that is ever logged, to be found by the browser's own search."""
    rows = sorted(
        (key, row.unit, f"[{one.name}]({page_of(one)})", one.linked(meaning))
        for one in every
        for row in one.rows
        for key, meaning in row.expanded()
    )
    rows = [(f"`{key}`", *rest) for key, *rest in rows]
    return f"# Keys\n\n{table(('key', 'unit', 'measure', 'meaning'), rows)}"


def page_of(one: Documented) -> str:
    return "every_run.md" if one.name in EVERY_RUN else f"{one.stem}.md"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *(tuple(map(cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def cell(text: str) -> str:
    """One line, whose own bars end no cell."""
    return " ".join(text.split()).replace("|", "&#124;" if "`" not in text else "\\|")


# Functions


def module_stems() -> list[str]:
    """Modules of measures, less that prefix: "curvature.hessian"."""
    folder = ROOT.joinpath(*MEASURES.split("."))
    return sorted(".".join(file.relative_to(folder).with_suffix("").parts) for file in folder.rglob("[!_]*.py"))


def function_page(stem: str) -> str:
    return f"::: {MEASURES}.{stem}\n    options: {{heading_level: 1, show_root_heading: true}}\n"


# Papers


def result_pages(config: MkDocsConfig) -> tuple[list[File], dict[str, str]]:
    """Figures that there are, and pages: the list of all artefacts, and what `reproduce` has found of each."""
    from lightning_app.papers import PAPERS, paper

    figures, pages, listing = [], {}, ["# Papers", "All figures on one page: [Gallery](gallery.md)."]
    for key in PAPERS:
        rows = []
        for artefact in paper(key).artefacts:
            home = ROOT / "results" / key
            made = [name for name in (artefact.key, f"{artefact.key}/reduced") if (home / name / "table.md").exists()]
            for name in made:
                pages[f"papers/{key}/{name}.md"] = result_page(home / name)
                if (figure := home / name / "figure.png").exists():
                    figures.append(File.generated(config, f"papers/{key}/{name}.png", abs_src_path=str(figure)))
            links = ", ".join(f"[{name}]({key}/{name}.md)" for name in made)
            rows.append((links or artefact.key, artefact.title, counts(home / artefact.key)))
        listing += [f"## {paper(key).title}", table(("artefact", "what", "verdicts"), rows)]
    return figures, pages | {"papers/index.md": "\n\n".join(listing)}


def registration_page() -> str:
    """Every claim with its test, when it was first committed, and each change since."""
    from lightning_app.reproduce.registration import page, registered

    return page(registered())


def counts(folder: Path) -> str:
    from lightning_app.papers.verdicts import in_words

    file = folder / "verdict.json"
    return in_words(json.loads(file.read_text())["counts"]) if file.exists() else "not run at paper scale"


def result_page(folder: Path) -> str:
    title, _, text = (folder / "table.md").read_text().partition("\n")
    picture = f"![{folder.name}]({folder.name}.png)" if (folder / "figure.png").exists() else ""
    return "\n\n".join([title, picture, text])
