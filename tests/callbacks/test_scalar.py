"""Measures of a user, as docs/your-project.md has them: from their file to the log, the page and the run folder."""

import functools
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger

from callbacks import Scalar
from lightning_app.cli.training import run_training
from lightning_app.common.errors import UserError
from lightning_app.measures.core.hooks import WatchRelus
from lightning_app.modules import Arm
from lightning_app.networks import SimplifiedNet
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.helpers import ROOT, TINY, arm, classifier, context, fit, same_weights

PAGE = (ROOT / "docs" / "your-project.md").read_text()


def example(language: str, word: str) -> str:
    """The block of docs/your-project.md that has this word."""
    (block,) = [code for code in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if word in code]
    return block


def backward(context) -> torch.Tensor:
    """As one writes it first: gradients are enabled, and what is left in .grad does not reach training."""
    inputs, labels = next(context.batches())
    context.loss(context.net(inputs), labels).backward()
    return context.net.fc.weight.grad.norm()


@pytest.mark.slow
def test_from_eight_lines_of_a_user_to_log_page_and_documentation(tmp_path, monkeypatch):
    function = example("python", "def grad_norm")
    assert len(function.strip().splitlines()) <= 8
    (tmp_path / "my_measures.py").write_text(function)
    (tmp_path / "own.yaml").write_text(example("yaml", "grad_norm"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "learning.yaml").write_text("trainer: {callbacks: [TrainingMetrics]}")  # which it adds to
    run_training([*TINY, "--config", "learning.yaml", "--config", "own.yaml"])
    run = RunFolder(tmp_path / "runs/digits/quickstart")
    norms = run.log().query("name == 'grad_norm'")
    assert sorted(zip(norms["member"], norms["epoch"])) == [(net, e) for net in ("plain", "residual") for e in range(3)]
    assert (norms["value"] > 0).all() and "function: my_measures.grad_norm" in (run.path / "config.yaml").read_text()
    assert run.described_keys() == {"grad_norm": "2-norm of the gradient of the mean loss on the probe samples."}
    page = (run.path / "report.html").read_text()
    section = page.partition('id="own-measures"')[2].partition("</section>")[0]
    assert "<svg" in section and "2-norm of the gradient of the mean loss" in section


def test_no_random_stream_of_training_moves():
    def draws(_) -> float:
        return torch.rand(()).item() + np.random.rand() + random.random()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    Scalar("drawn", draws).evaluate(context(classifier().members[0].net))
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_the_value_is_the_functions_and_training_does_not_see_what_it_did(tmp_path):
    bank = {"residual": arm(True)}
    loggers = [RunLogger(tmp_path), tracker := CSVLogger(tmp_path)]
    watched = fit(classifier(bank), callbacks=[Scalar("norm/fc", backward)], logger=loggers)
    assert same_weights(watched.nets, fit(classifier(bank)).nets)
    net = watched.members[0].net
    assert all(weight.grad is None or bool(weight.grad.isfinite().all()) for weight in net.parameters())
    log = RunFolder(tmp_path).log().query("name == 'norm/fc' and epoch == 2")
    assert "norm/fc" in (Path(tracker.log_dir) / "metrics.csv").read_text()
    assert log["value"].item() == float(Scalar("x", backward).evaluate(context(net))["x"])
    assert Scalar("x", lambda _: 1).describe() == Scalar("x", functools.partial(backward)).describe() == {}


@pytest.mark.parametrize("returned", [None, "high", torch.zeros(2), {"a": 1.0}])
def test_what_is_no_number_is_refused(returned):
    with pytest.raises(UserError, match="function of Scalar 'odd' must return one number, got"):
        Scalar("odd", lambda _: returned).evaluate(context(arm(True).net()))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: unspecified launch failure")]
)
def test_what_the_device_reports_only_when_the_number_is_read_is_no_wrong_number(error):
    class Late:
        def __float__(self):
            raise error

    with pytest.raises(type(error), match="CUDA"):
        Scalar("late", lambda _: Late()).evaluate(context(arm(True).net()))


@pytest.mark.parametrize("name", ["", "a b", "a//b", "/a"])
def test_a_name_is_a_key(name):
    with pytest.raises(UserError, match="name of Scalar must consist of letters"):
        Scalar(name, backward)


def test_a_measure_of_your_own_is_45_lines(tmp_path):
    source, names = example("python", "class ReluActivity"), {"__name__": "relu_activity"}
    assert len(source.splitlines()) <= 45
    exec(source, names)

    def half_dead() -> torch.nn.Module:
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
        torch.nn.init.constant_(net[1].bias[:4], -1e6)
        return net

    found = names["ReluActivity"]().evaluate(context(net := half_dead()))["relu"]
    ((inputs, _),) = context(net).batches()
    active = (net[1](inputs.flatten(1)) > 0).float()  # (samples, 8)
    assert found.mean == pytest.approx(active.mean().item())
    assert 0.5 <= found.dead == (active.sum(0) == 0).float().mean().item()
    bank = classifier({"one": Arm(net=half_dead)})
    fit(bank, epochs=1, callbacks=[names["ReluActivity"]()], logger=[RunLogger(tmp_path)])
    assert {"relu/mean", "relu/dead", "cost/relu"} == set(RunFolder(tmp_path).log()["name"])
    assert RunFolder(tmp_path).described_keys()["relu/dead"] == "Share of units never active"


@pytest.mark.parametrize("residual", [True, False])
def test_a_measure_of_your_own_measures_nets_of_ours(residual):
    """Whose ReLUs are calls; compared with the outputs of their ReLUs. No hook stays, also where a pass raises."""
    exec(example("python", "class ReluActivity"), names := {"__name__": "relu_activity"})
    net, outputs = SimplifiedNet(8, residual, width=4).eval(), []
    found = names["ReluActivity"]().evaluate(context(net))["relu"]
    batches = [*context(net).batches()]
    with WatchRelus(lambda _, out: outputs.append((out > 0).flatten(1).float())):
        for inputs, _ in batches:
            net(inputs)
    *maps, last = outputs  # the linear layer gets the last one's mean over the map
    active = torch.cat([*maps, last.unflatten(1, (16, -1)).amax(2)], 1)
    assert len(batches) == 1 and len(outputs) == 7
    assert found.mean == pytest.approx(active.mean().item())
    assert found.dead == pytest.approx((active.amax(0) == 0).float().mean().item())
    with pytest.raises((RuntimeError, ValueError)):
        names["activity"](net, [(torch.ones(1, 7), None)])
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in net.modules())
