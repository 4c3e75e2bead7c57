"""Figures: colours and styles of plain and residual nets, and the papers' kind of plots."""
