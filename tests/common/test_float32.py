"""How a GPU multiplies float32 numbers: PyTorch's switches can be read and set without one, so all of it is tested here."""

import json
from types import SimpleNamespace

import jsonschema
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import skipscope
from callbacks import Scalar
from lightning_app.cli.training import TrainingCLI
from lightning_app.common.isolation import unrounded, use_float32
from lightning_app.measures import Hessian
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import made_by
from tests.helpers import ROOT, classifier, digits, fit

OLDER, PRODUCTS = torch.backends.cudnn, torch.backends.cuda.matmul
NEWER = (torch.backends.cudnn.conv, torch.backends.cudnn.rnn, PRODUCTS)


@pytest.fixture(autouse=True)
def as_before():
    convolutions, _, products = (switch.fp32_precision for switch in NEWER)
    yield
    use_float32("tf32" if convolutions == "tf32" else "fp32")  # the older switches too
    PRODUCTS.fp32_precision = products


def state() -> tuple:
    """Older and newer switches; reading raises where they contradict each other."""
    return (
        OLDER.allow_tf32,
        PRODUCTS.allow_tf32,
        torch.get_float32_matmul_precision(),
        *(s.fp32_precision for s in NEWER),
    )


@pytest.mark.parametrize("earlier", ["tf32", "fp32"])
def test_older_and_newer_switches_agree(earlier):
    use_float32(earlier)
    use_float32("fp32")
    assert state() == (False, False, "highest", "ieee", "ieee", "ieee")
    use_float32("tf32")
    assert state() == (True, False, "highest", "tf32", "tf32", "ieee")


def test_a_hessian_is_not_rounded_and_leaves_the_switches_as_they_were(monkeypatch):
    class Net(nn.Linear):
        def forward(self, x):
            if torch.is_grad_enabled():
                seen.append(state())
            return super().forward(x)

    seen: list[tuple] = []
    before = state()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    Hessian(Net(2, 3).eval(), [(torch.eye(2), torch.tensor([0, 1]))], F.cross_entropy)
    assert {*seen} == {(False, False, "highest", "ieee", "ieee", "ieee")}
    assert state() == before
    with pytest.raises(ValueError, match="mine"), unrounded():
        raise ValueError("mine")
    assert state() == before


def test_no_measure_is_rounded(monkeypatch):
    """In tf32 the parts of a full net's paths add up to it within 2e-3 only, and it would have no effective depth."""

    noting = Scalar("noted", lambda context: float(state()[-3:] == ("ieee",) * 3))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    use_float32("tf32")
    before = state()
    assert skipscope.measure(nn.Linear(4, 3), torch.zeros(2, 4), torch.tensor([0, 1]), noting)["noted"] == 1
    assert state() == before


@pytest.mark.parametrize("products", ["highest", "high", "medium"])
def test_what_is_set_for_products_is_set_afterwards(products, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(products)
    try:
        with unrounded():
            assert PRODUCTS.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == products
    finally:
        torch.set_float32_matmul_precision(before)


def on_a_gpu() -> SimpleNamespace:
    """As much of a trainer as is asked what it trains on."""
    strategy = SimpleNamespace(root_device=torch.device("cuda"))
    return SimpleNamespace(
        strategy=strategy, precision="32-true", world_size=1, max_epochs=2, current_epoch=0, precision_plugin=None
    )


@pytest.mark.parametrize("choice", ["tf32", "fp32"])
def test_the_models_choice_is_set_said_and_kept(choice, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    module, trainer = classifier(float32=choice), on_a_gpu()
    trainer.datamodule = data = digits()
    data.prepare_data(), data.setup("fit")
    use_float32({"tf32": "fp32", "fp32": "tf32"}[choice])
    module._trainer = trainer
    module.setup("validate")
    assert OLDER.allow_tf32 == (choice == "tf32")
    command = SimpleNamespace(model=module, trainer=trainer, datamodule=data, folder=RunFolder(tmp_path))
    TrainingCLI.before_fit(command)
    assert f"cuda, precision 32-true, float32 convolutions in {choice}\n" in capsys.readouterr().out
    made = made_by(trainer, module, "")
    assert (made["float32"], made["gpu"]) == (choice, "a GPU")
    defined = json.loads((ROOT / "results" / "verdict.schema.json").read_text())["$defs"]
    jsonschema.validate(made, {"$ref": "#/$defs/trained_with", "$defs": defined})  # a verdict's record has it whole


def test_a_cpu_rounds_nothing_and_its_process_keeps_its_switches(tmp_path):
    before = state()
    module = fit(classifier(float32="fp32"), epochs=1, limit_train_batches=1, limit_val_batches=0)
    assert state() == before
    assert made_by(module.trainer, classifier(), "")["float32"] == "fp32"
