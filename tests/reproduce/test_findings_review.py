"""What was tried to overturn a finding has been tried on all of its record."""

import csv
from pathlib import Path

from lightning_app.papers.findings import start_and_centre

REVIEW = Path(__file__).resolve().parents[2] / "docs/results/2026-11-23-findings-review.csv"


def test_training_risk_is_reviewed_at_every_decay():
    with REVIEW.open(encoding="utf-8") as file:
        attempts = {row["attempt"] for row in csv.DictReader(file)}
    assert {f"{piece}, in training risk" for piece in start_and_centre.ENDS.pieces} <= attempts
