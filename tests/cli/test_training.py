"""Small decisions of the command line."""

import torch

from lightning_app.cli.training import _accelerator, _progress


def test_auto_never_takes_an_accelerator_without_float64(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (_accelerator("auto"), _accelerator("mps")) == ("cpu", "mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert _accelerator("auto") == "auto"


def test_a_bar_on_a_terminal_and_lines_elsewhere():
    from pytorch_lightning.callbacks import RichProgressBar

    def names(shown: bool, *given) -> list[str]:
        return [type(callback).__name__ for callback in _progress({"enable_progress_bar": shown}, list(given))]

    assert names(True) == ["TQDMProgressBar"]
    assert names(True, RichProgressBar()) == ["RichProgressBar"]
    assert names(False) == ["ProgressLines"]
