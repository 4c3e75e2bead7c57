"""Li et al. (2016), *Demystifying ResNet*: every theorem, lemma and figure.

The text we have lost its formulas and captions: theorems are taken as rebuilt and verified, figures by what the sections say
of them. Tests and tolerances were fixed before any run. Where the paper's figure is the only number, ours is described.
"""

from lightning_app.papers.li_et_al.dynamics import DYNAMICS
from lightning_app.papers.li_et_al.fig_2_3 import FIG_2, FIG_3
from lightning_app.papers.li_et_al.fig_4 import FIG_4
from lightning_app.papers.li_et_al.fig_5_6 import FIG_5, FIG_6
from lightning_app.papers.li_et_al.fig_7_8 import FIG_7, FIG_8
from lightning_app.papers.li_et_al.fig_9 import FIG_9
from lightning_app.papers.li_et_al.theorem_1_lemmas import LEMMAS, THEOREM_1
from lightning_app.papers.li_et_al.theorem_2 import THEOREM_2
from lightning_app.papers.parts import Paper

PAPER = Paper(
    "li-et-al",
    "Li et al. (2016), Demystifying ResNet.",
    (THEOREM_1, THEOREM_2, LEMMAS, FIG_2, FIG_3, FIG_4, FIG_5, FIG_6, DYNAMICS, FIG_7, FIG_8, FIG_9),
)
