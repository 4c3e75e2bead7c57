"""Small decisions of the command line."""

import torch

from lightning_app.cli.training import _accelerator


def test_auto_never_takes_an_accelerator_without_float64(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (_accelerator("auto"), _accelerator("mps")) == ("cpu", "mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _accelerator("auto") == "auto"
