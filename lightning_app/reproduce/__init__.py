"""Papers, artefact by artefact: the runs each needs, the figure in the paper's form, paper against ours, a verdict.

A paper is a folder of `lightning_app.papers` and its YAML files below configs/papers/; this package serves all papers. Claims and
tolerances are fixed before any run. Reading run folders does not need torch: training runs in separate processes.
"""

from lightning_app.reproduce.command import main
