"""Yu & Tomasi (2019), *Identity Connections in Residual Nets Improve Noise Stability*: every table and figure.

The tests and tolerances were fixed before any run; the paper's numbers stand here as printed, and its words where it has
no number. Paper scale trains three seeds where the paper shows one, so that there is a spread to compare with.
"""

from lightning_app.papers.parts import Paper
from lightning_app.papers.yu_tomasi.equivalence import EQUIVALENCE
from lightning_app.papers.yu_tomasi.fig_2 import FIG_2
from lightning_app.papers.yu_tomasi.fig_3_interlayer_noise import FIG_3, INTERLAYER, INTERLAYER_EARLY, NOISE
from lightning_app.papers.yu_tomasi.nets import KEY
from lightning_app.papers.yu_tomasi.table_1 import TABLE_1
from lightning_app.papers.yu_tomasi.table_2_fig_6 import FIG_6, TABLE_2
from lightning_app.papers.yu_tomasi.table_3_fig_7 import FIG_7, TABLE_3

PAPER = Paper(
    KEY,
    "Yu & Tomasi (2019), Identity Connections in Residual Nets Improve Noise Stability.",
    (TABLE_1, TABLE_2, TABLE_3, FIG_2, FIG_3, FIG_6, FIG_7, INTERLAYER, INTERLAYER_EARLY, NOISE, EQUIVALENCE),
)
