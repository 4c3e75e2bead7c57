"""Beyond the papers: what theory says of their nets that none of them measured. Predictions registered before any run."""

from lightning_app.papers.beyond.signals import SIGNALS
from lightning_app.papers.parts import Paper

PAPER = Paper("beyond", "Beyond the papers, predictions of ours on their nets.", (SIGNALS,))
