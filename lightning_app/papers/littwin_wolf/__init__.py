"""Littwin & Wolf (2016), *The Loss Surface of Residual Networks*: every theorem, lemma and figure.

Theorems and lemmas by closed forms, exact enumeration on small nets and finite differences; the spin glass of section 5 sampled
at small size and its critical points counted; figures of trained nets by runs. Tests and tolerances were fixed before any.
"""

from lightning_app.papers.littwin_wolf.ensemble import ENSEMBLE
from lightning_app.papers.littwin_wolf.eq_22 import EQ_22
from lightning_app.papers.littwin_wolf.fig_1abc import FIG_1A, FIG_1B, FIG_1C, LEMMA_4, THEOREM_1, THEOREM_2
from lightning_app.papers.littwin_wolf.fig_1de import FIG_1D, FIG_1E
from lightning_app.papers.littwin_wolf.fig_1f_theorem_5 import FIG_1F, THEOREM_5
from lightning_app.papers.littwin_wolf.fig_2_3 import FIG_2, FIG_3
from lightning_app.papers.littwin_wolf.lemmas import LEMMA_1, LEMMA_2, LEMMA_3
from lightning_app.papers.littwin_wolf.theorems_3_4 import THEOREM_3, THEOREM_4
from lightning_app.papers.parts import Paper

PAPER = Paper(
    "littwin-wolf",
    "Littwin & Wolf (2016), The Loss Surface of Residual Networks.",
    (
        *(FIG_1A, FIG_1B, FIG_1C, FIG_1D, FIG_1E, FIG_1F, FIG_2, FIG_3, ENSEMBLE, EQ_22),
        *(THEOREM_1, THEOREM_2, THEOREM_3, THEOREM_4, THEOREM_5, LEMMA_1, LEMMA_2, LEMMA_3, LEMMA_4),
    ),
)
