"""Statistics over seeds: paired tests, bootstrap intervals and curves at equal risk; rank correlation."""
