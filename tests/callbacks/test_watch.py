"""`skipscope.watch` around a loop of one's own: Lightning's numbers, training unchanged, and nothing that stops it."""

import logging

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import skipscope
from callbacks import DistanceFromStart, HessianSpectrum, LayerCushion, Scalar, Signal, WeightMass
from lightning_app.common.errors import UserError

EPOCH = 6  # steps


def data() -> DataLoader:
    images = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(images, torch.arange(24) % 3), batch_size=4)


def probe() -> list:
    return [(images, labels) for images, labels in data()][:3]


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def measures() -> list:
    return [LayerCushion(), WeightMass(), Signal(), DistanceFromStart(), HessianSpectrum(samples=12, steps=4)]


def train(net: nn.Module, optimizer: torch.optim.Optimizer, epochs: int = 2) -> nn.Module:
    for _ in range(epochs):
        for images, labels in data():
            optimizer.zero_grad()
            F.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return net


def watched(folder, **more) -> nn.Module:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    options = {
        "every": "powers_of_2",
        "measures": measures(),
        "steps_per_epoch": EPOCH,
        "total_steps": 2 * EPOCH,
    } | more
    with skipscope.watch(net, probe(), optimizer, folder=folder, **options):
        train(net, optimizer)
    return net


@pytest.fixture(scope="module")
def bare() -> nn.Module:
    net = small_net()
    return train(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def loss(self, outputs, labels):
        return F.cross_entropy(outputs, labels)

    def forward(self, images):
        return self.net(images)

    def training_step(self, batch, _):
        return self.loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def probe_loader(self):
        return probe()


def test_numbers_and_arrays_are_those_of_lightnings_callbacks_bit_for_bit(tmp_path, bare):
    net = watched(tmp_path / "ours")
    own = measures()
    for one in own:
        one.every_n_epochs, one.every_n_steps = 10**9, "powers_of_2"
    trainer = pl.Trainer(
        max_epochs=2, callbacks=own, logger=skipscope.RunLogger(tmp_path / "theirs"), enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, accelerator="cpu", log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module := Module(), data())
    assert same_weights(net, module.net) and same_weights(net, bare)
    ours, theirs = (skipscope.open_run(tmp_path / name).log() for name in ("ours", "theirs"))
    ours, theirs = (log[~log["name"].str.startswith("cost/")].reset_index(drop=True) for log in (ours, theirs))
    order = ["epoch", "name"]
    pairs = [
        log.sort_values(order, ignore_index=True)[["member", "epoch", "step", "name", "value"]]
        for log in (ours, theirs)
    ]
    assert sorted(pairs[0]["step"].unique()) == [0, 1, 2, 4, 8, 12]
    assert pairs[0].equals(pairs[1])
    files = [
        sorted(path.relative_to(tmp_path / run) for path in (tmp_path / run).rglob("*.npz"))
        for run in ("ours", "theirs")
    ]
    assert files[0] == files[1] != []
    for file in files[0]:
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()


def test_it_is_a_run_like_any_other(tmp_path):
    watched(tmp_path / "run")
    run = skipscope.open_run(tmp_path / "run")
    assert "finished" in repr(run)
    assert skipscope.report(tmp_path / "run").stat().st_size > 10_000
    assert run.nets().loc["net", "epoch"] == 2


def test_several_nets_and_numbers_of_ones_own_without_an_optimizer(tmp_path):
    nets = {"plain": small_net(), "residual": small_net()}
    with skipscope.watch(nets, probe(), every=2, folder=tmp_path / "run", measures=[WeightMass()]) as scope:
        for step in range(4):
            scope.step()
            scope.log({"test/error": 0.5 - 0.1 * step}, "plain")
    log = skipscope.open_run(scope.folder).log()
    assert sorted(log.query("name == 'weight_mass/all'")["step"].unique()) == [0, 2, 4]
    assert log.query("name == 'test/error' and step == 4")["value"].item() == pytest.approx(0.2)


def test_batches_of_any_form(tmp_path):
    batches = [{"pixels": images, "labels": labels} for images, labels in probe()]
    with skipscope.watch(
        small_net(), batches, folder=tmp_path, measures=[LayerCushion()], pair_of=lambda b: (b["pixels"], b["labels"])
    ):
        pass
    assert "cushion/layer02/median" in set(skipscope.open_run(tmp_path).log()["name"])


def test_the_optimizer_may_be_wrapped_and_a_part_of_training_goes_on(tmp_path, bare):
    class Wrapper(torch.optim.Optimizer):  # as Accelerate's
        def __init__(self, optimizer):
            self.optimizer = optimizer

    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for part in range(2):
        with skipscope.watch(
            net, probe(), Wrapper(optimizer), every=EPOCH, folder=tmp_path, measures=[WeightMass()],
            steps_per_epoch=EPOCH, steps_done=part * EPOCH,
        ):  # fmt: skip
            train(net, optimizer, epochs=1)
    assert same_weights(net, bare)
    log = skipscope.open_run(tmp_path).log().query("name == 'weight_mass/all'")
    assert log[["epoch", "step"]].to_numpy().tolist() == [[0, 0], [1, 6], [2, 12]]


def signals(folder) -> list:
    log = skipscope.open_run(folder).log()
    return log[log["name"].str.startswith("signal/")][["step", "name", "value"]].to_numpy().tolist()


@pytest.mark.parametrize("how", ["announced", "closure", "evaluating"])
def test_signals_are_of_the_training_step_alone(tmp_path, how):
    """Whatever else passes through the net: other measures, closures of the optimizer, an evaluation between steps."""

    def run(folder, how: str) -> list:
        net = small_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        given = None if how == "announced" else optimizer
        with skipscope.watch(net, probe(), given, every=1, folder=folder, measures=[LayerCushion(), Signal()]) as scope:
            for images, labels in data():

                def closure(images=images, labels=labels):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(net(images), labels)
                    loss.backward()
                    return loss

                if how == "evaluating":
                    with torch.no_grad():
                        net.eval()(images)
                    net.train()
                if how == "closure":
                    optimizer.step(closure)
                else:
                    closure()
                    optimizer.step()
                if how == "announced":
                    scope.step()
        return signals(folder)

    assert run(tmp_path / how, how) == run(tmp_path / "plain", "plain") != []


def test_own_numbers_are_at_the_step_that_was_made(tmp_path):
    with skipscope.watch(
        small_net(), probe(), every=1, folder=tmp_path, measures=[WeightMass()], steps_per_epoch=4
    ) as scope:
        scope.log({"mine": 0.0})
        for _ in range(5):
            scope.step()
            scope.log({"mine": 0.0})
    log = skipscope.open_run(tmp_path).log()
    mine, theirs = (
        log.query(f"name == '{name}'")[["epoch", "step"]].to_numpy().tolist() for name in ("mine", "weight_mass/all")
    )
    assert mine == theirs == [[0, 0], [0.25, 1], [0.5, 2], [0.75, 3], [1, 4], [1.25, 5]]


def test_names_that_cannot_be_keys_are_refused_before_training(tmp_path):
    with pytest.raises(UserError, match="without '/'"):
        skipscope.watch({"a/b": small_net()}, probe(), folder=tmp_path)


def broken(context) -> float:
    raise RuntimeError("a fault of the measure")


def full(*_) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("callbacks.measure.log_results", full),
        ("lightning_app.runs.RunFolder.append", full),
        ("lightning_app.runs.RunFolder.begin", full),
        ("lightning_app.runs.RunFolder.finish", full),
        ("lightning_app.runs.RunFolder.save_members", full),
        ("callbacks.measure.contexts_of", broken),
        ("callbacks.signal.SignalWatch.close", broken),
        ("callbacks.signal.SignalWatch.stop", broken),
        ("callbacks.WeightMass.on_train_batch_end", broken),
        ("callbacks.WeightMass.on_train_batch_start", broken),
    ],
)
def test_no_fault_of_ours_stops_or_changes_training(tmp_path, bare, monkeypatch, where, what):
    monkeypatch.setattr(where, what)
    assert same_weights(watched(tmp_path / "run"), bare)


def test_what_ends_the_watching_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("callbacks.measure.log_results", full)
    with caplog.at_level(logging.WARNING):
        watched(tmp_path / "run")
    said = [record.message for record in caplog.records if "watching ends" in record.message]
    assert (
        said == ["watching ends after step 0, training goes on: [Errno 28] No space left on device"] or len(said) == 1
    )


def test_a_measure_that_fails_costs_its_own_numbers(tmp_path, bare):
    net = watched(tmp_path / "run", measures=[Scalar("odd", broken), WeightMass()])
    assert same_weights(net, bare)
    names = set(skipscope.open_run(tmp_path / "run").log()["name"])
    assert {"failed/odd", "weight_mass/all"} <= names


def test_an_error_of_the_loop_is_the_loops_own_and_leaves_no_hooks(tmp_path):
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with (
        pytest.raises(ZeroDivisionError),
        skipscope.watch(net, probe(), optimizer, every=1, folder=tmp_path, measures=[Signal()]),
    ):
        net(torch.randn(2, 1, 6, 6))
        raise ZeroDivisionError
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"every": 0}, "every_n_steps of WeightMass must be at least 1"),
        ({"measures": [LayerCushion]}, "expected measures such as LayerCushion()"),
        ({"steps_per_epoch": 0}, "expected steps_per_epoch from 1"),
    ],
)
def test_mistakes_are_said_before_training(tmp_path, options, said):
    with pytest.raises(UserError, match=said.replace("(", r"\(").replace(")", r"\)")):
        skipscope.watch(small_net(), probe(), folder=tmp_path, **{"measures": [WeightMass()]} | options)


@pytest.mark.slow
def test_in_a_trainer_of_transformers_with_batches_and_outputs_of_its_own(tmp_path):
    transformers = pytest.importorskip("transformers", reason="pip install -e '.[transformers]'")

    tokens = torch.randint(0, 50, (16, 12), generator=torch.Generator().manual_seed(0))
    samples = [{"input_ids": row, "labels": row} for row in tokens]
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}

    def trained(*callbacks) -> nn.Module:
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "theirs"), max_steps=6, per_device_train_batch_size=4, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        transformers.Trainer(model, arguments, train_dataset=samples, callbacks=[*callbacks]).train()
        return model

    def loss(output, labels):
        return F.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    callback = skipscope.watch.in_transformers(
        [{"input_ids": tokens, "labels": tokens}], every="powers_of_2", folder=tmp_path / "run",
        measures=[Signal(), Scalar("norm", weight_norm)],
        pair_of=lambda batch: (batch["input_ids"], batch["labels"]), loss=loss,
    )  # fmt: skip
    assert same_weights(trained(callback), trained())
    log = skipscope.open_run(tmp_path / "run").log()
    assert sorted(log.query("name == 'norm'")["step"]) == [0, 1, 2, 4, 6]
    assert sorted(log.query("name == 'signal/layer01/weight'")["step"]) == [0, 1, 2, 4, 6]


def weight_norm(context) -> float:
    """Norm of all weights."""
    return float(sum(weight.square().sum() for weight in context.net.parameters()).sqrt())
