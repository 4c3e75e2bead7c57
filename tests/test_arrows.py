"""Who may import whom: imports go one way, from general to special code (see the map in docs/architecture.md)."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCIENCE = {"torch", "numpy", "scipy", "curvlinops", "typing_extensions"}
LIGHTNING = {"pytorch_lightning", "lightning_fabric", "lightning_utilities", "torchmetrics"}
# room -> what it may import beside the standard library; "lightning_app.x" names a room of ours
ALLOWED = {
    "lightning_app.common": {"numpy", "yaml", "torch"},
    "lightning_app.identity": SCIENCE | {"lightning_app.common"},
    "lightning_app.statistics": {"numpy", "scipy", "lightning_app.common"},
    "lightning_app.plots": {"numpy", "pandas", "matplotlib"},
    "lightning_app.cli.console": {"rich", "lightning_app.common"},
    "lightning_app.networks": SCIENCE | {"lightning_app.identity", "lightning_app.common"},
    "lightning_app.theory": SCIENCE | {"lightning_app.common"},
    "lightning_app.measures": SCIENCE
    | {
        "lightning_app.identity",
        "lightning_app.networks.layers",
        "lightning_app.networks.blocks",
        "lightning_app.common",
    },
    "lightning_app.datamodules": SCIENCE
    | LIGHTNING
    | {"torchvision", "sklearn", "PIL", "tqdm", "lightning_app.common"},
    "lightning_app.modules": SCIENCE
    | LIGHTNING
    | {"lightning_app.identity", "lightning_app.networks.layers", "lightning_app.common"}
    | {"lightning_app.measures.core.losses"},  # what is trained is what is measured
    "lightning_app.runs": SCIENCE
    | LIGHTNING
    | {"wandb", "pandas", "yaml", "safetensors", "lightning_app.common", "lightning_app.runs.notebook"},
    # Above the report: it shows the page. The package has its names for those who look there.
    "lightning_app.runs.notebook": {
        "numpy",
        "pandas",
        "lightning_app.common",
        "lightning_app.runs",
        "lightning_app.report",
    },
    # Claims of the papers, which the reproduction judges. The report shows its records.
    "lightning_app.papers": {"numpy", "pandas", "scipy", "matplotlib", "yaml", "torch"}
    | {"lightning_app.common", "lightning_app.statistics", "lightning_app.plots", "lightning_app.runs"}
    | {"lightning_app.identity", "lightning_app.theory", "lightning_app.networks", "lightning_app.datamodules"}
    | {"lightning_app.measures"},
    "lightning_app.papers.findings": {"numpy", "scipy", "matplotlib", "torch", "torchvision"}
    | {"lightning_app.common", "lightning_app.statistics", "lightning_app.plots", "lightning_app.papers"}
    | {"lightning_app.identity", "lightning_app.theory", "lightning_app.networks", "lightning_app.datamodules"}
    | {"lightning_app.measures", "lightning_app.runs", "callbacks"},
    "lightning_app.report": {"numpy", "pandas", "scipy", "matplotlib", "jinja2", "yaml", "markupsafe"}
    | {"lightning_app.common", "lightning_app.statistics", "lightning_app.plots", "lightning_app.runs"}
    | {"lightning_app.papers.records", "lightning_app.papers.verdicts", "lightning_app.compare"},
    "lightning_app.board": {"numpy", "pandas"} | {"lightning_app.common", "lightning_app.runs", "lightning_app.report"},
    "lightning_app.compare": {
        "numpy",
        "pandas",
        "lightning_app.common",
        "lightning_app.statistics",
        "lightning_app.runs",
    },
    "lightning_app.reproduce": {"numpy", "pandas", "yaml"}
    | {"lightning_app.common", "lightning_app.plots", "lightning_app.runs", "lightning_app.papers"}
    | {"lightning_app.cli.console"},
    "callbacks": SCIENCE
    | LIGHTNING
    | {
        "wandb",
        "yaml",
        "transformers",  # where somebody calls for a callback of its trainer
        "lightning_app.common",
        "lightning_app.measures",
        "lightning_app.runs",
        "lightning_app.networks",
    }
    | {"lightning_app.statistics"},
    "lightning_app.cli": None,  # the top: anything
    "skipscope": None,  # the public names, and the command
    "main": {"skipscope"},
    "lightning_app": set(),
}
FILES = [
    *(ROOT / "lightning_app").rglob("*.py"),
    *(ROOT / "callbacks").rglob("*.py"),
    *(ROOT / "skipscope").rglob("*.py"),
    ROOT / "main.py",
]


def imports(file: Path) -> set[str]:
    """Dotted names of everything a file imports, at its top or late."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            found.add(node.module)
    return found


def room(name: str) -> str:
    """The longest key of ALLOWED that a dotted name lies in, else its first part."""
    own = [key for key in ALLOWED if name == key or name.startswith(f"{key}.")]
    return max(own, key=len) if own else name.split(".")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_arrows(file):
    own = room(".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    allowed = ALLOWED[own]
    if allowed is None:
        return
    for name in imports(file):
        if name.split(".")[0] in sys.stdlib_module_names or room(name) == own:
            continue
        assert any(name == key or name.startswith(f"{key}.") for key in allowed), f"{own} imports {name}"


# How a net describes itself.
DESCRIPTIONS = {
    "Layer",
    "ROLES",
    "each_once",
    "named_at",
    "layers_of",
    "padding_of",
    "is_ordinary",
    "Span",
    "blocks_of",
    "span_of",
    "Surveyed",
    "by_reason",
    "NEVER_CALLED",
    "measurable",
    "survey",
}


def test_callbacks_and_measures_never_name_a_concrete_network():
    for folder in (ROOT / "callbacks", ROOT / "lightning_app" / "measures"):
        for file in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_app.networks"):
                    assert {alias.name for alias in node.names} <= DESCRIPTIONS, f"{file} knows a network"
