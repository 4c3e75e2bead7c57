"""Papers, artefact by artefact: the runs each needs, the figure in the paper's form, paper against ours, a verdict.

A paper is a folder of `lightning_app.papers` and its YAMLs below configs/papers/; what is here serves all of them. Claims and
tolerances are fixed before any run. Reading run folders needs no torch: training happens in processes of its own.
"""

from lightning_app.reproduce.command import main
