"""Signals from training's own steps: the same numbers as in a loop by hand, and nothing in training changes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import callbacks
from callbacks import Signal
from callbacks.log import flatten
from lightning_app.measures.signal import SignalWatch, profile
from lightning_app.networks import CifarResNet
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from tests.callbacks.test_protocol import Foreign, Wrapping, images
from tests.callbacks.test_protocol import fit as fit_foreign
from tests.helpers import arm, classifier, context, digits, fit, same_weights, trainer, with_statistics_of


def logged(folder, member: str, step: int) -> dict[str, float]:
    rows = RunFolder(folder).log().query("member == @member and step == @step")
    rows = rows[rows["name"].str.startswith("signal/")]
    return dict(zip(rows["name"].str.removeprefix("signal/"), rows["value"]))


def test_a_bank_logs_what_a_loop_by_hand_sees_in_the_same_steps(tmp_path):
    """Momentum, penalty and all: steps 1, 2 and 4, the first of them also as the start."""
    module, data = classifier(seeds=2), digits()
    start = {name: {key: value.clone() for key, value in net.state_dict().items()} for name, net in module.members}
    fit(module, 1, data=data, callbacks=[Signal(every_n_steps="powers_of_2")], logger=[RunLogger(tmp_path)])
    assert same_weights(module.nets, fit(classifier(seeds=2), 1).nets)
    for member in module.members:
        net = member.net
        net.load_state_dict(start[member.name])
        optimizer, loader = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), data.train_dataloader()
        loader.set_epoch(0)
        for step, batch in enumerate(loader, start=1):
            x, y = batch[member.seed]
            watch = SignalWatch(net)
            optimizer.zero_grad()
            cost = F.cross_entropy(net(module._format(x)), y)
            cost.backward()
            for weight in net.parameters():
                weight.grad += 1e-4 * weight.detach()
            optimizer.step()
            expected, found = profile(watch.stop()), logged(tmp_path, member.name, step)
            assert bool(found) == (step in (1, 2, 4))
            if found:
                assert found == pytest.approx(expected, rel=1e-5)
            if step == 1:
                start_found = logged(tmp_path, member.name, 0)
                assert found.items() <= start_found.items()
                more = start_found.keys() - found.keys()
                assert all(key.endswith("_expected") for key in more) and len(more) == (
                    8 if member.arm == "plain" else 4
                )
    assert "residual-seed00" in start


def test_it_is_watched_in_the_steps_that_are_logged_and_in_no_other(monkeypatch, tmp_path):
    watched = []
    monkeypatch.setattr(
        "callbacks.signal.SignalWatch.__init__", lambda self, net, *_, **__: watched.append(net) or None
    )
    monkeypatch.setattr("callbacks.signal.SignalWatch.stop", lambda self: {})
    for method in ("close", "keep_gradients"):
        monkeypatch.setattr(f"callbacks.signal.SignalWatch.{method}", lambda self, *_: None)
    monkeypatch.setattr("callbacks.signal.SignalWatch.shape", (), raising=False)
    monkeypatch.setattr("callbacks.signal.SignalWatch.missed", False, raising=False)
    module = classifier()
    fit(module, 3, callbacks=[Signal(every_n_epochs=2, every_n_steps=5)], logger=[RunLogger(tmp_path)])  # of 12 steps
    steps = [1, 5, 8, 10, 12]
    assert len(watched) == len(steps) * len(module.members)
    log = RunFolder(tmp_path).log().query("name == 'cost/signal'")
    assert log["step"].tolist() == [0, 5, 8, 10, 12]


def test_any_module_with_gathered_gradients_and_an_end_within_an_epoch(tmp_path):
    options = {"accumulate_grad_batches": 2, "max_steps": 3, "callbacks": [Signal(every_n_steps=2)]}
    watched, alone = Foreign(), Foreign()
    torch.manual_seed(2)  # of the dropout
    trainer(-1, logger=[RunLogger(tmp_path)], **options).fit(watched, DataLoader(images(), batch_size=10))
    torch.manual_seed(2)
    trainer(-1, **options | {"callbacks": []}).fit(alone, DataLoader(images(), batch_size=10))
    assert same_weights(watched, alone)
    log = RunFolder(tmp_path).log().query("name == 'signal/layer02/branch_cosine'")
    assert log["step"].tolist() == [0, 2, 3]
    assert not any(module._forward_hooks for module in watched.modules())


def test_a_compiled_net_has_weights_and_a_warning(tmp_path, caplog):
    module = classifier()
    for member in module.members:
        member.net._compiled_call_impl = member.net._call_impl  # as `net.compile()` leaves it, without compiling
    fit(module, 1, callbacks=[Signal()], logger=[RunLogger(tmp_path)])
    assert "Signal sees weights, their gradients and updates only: compiled nets run no hooks" in caplog.text
    fields = {key.split("/")[1] for key in logged(tmp_path, "plain", 4)}
    assert fields == {"weight", "weight_gradient", "update"}


def test_an_error_within_the_step_costs_its_own_numbers(tmp_path, monkeypatch):
    def broken(self, *_):
        raise RuntimeError("a foreign layer's own")

    monkeypatch.setattr("callbacks.signal.SignalWatch._square", broken)
    module = fit(classifier(), 1, callbacks=[Signal()], logger=[RunLogger(tmp_path)])
    assert same_weights(module.nets, fit(classifier(), 1).nets)
    failed = RunFolder(tmp_path).log().query("name == 'failed/signal' and member == 'plain'")
    assert failed["epoch"].tolist() == [0, 1]


def test_a_net_that_takes_no_hooks_costs_its_own_numbers(tmp_path):
    scripted = Wrapping(torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(36, 3))))
    fit_foreign(scripted, Signal(), folder=tmp_path, epochs=1)
    failed = RunFolder(tmp_path).log().query("name == 'failed/signal'")
    assert failed["epoch"].tolist() == [0, 1]


def test_a_module_that_trains_its_parts_and_not_itself_is_told_so(tmp_path, caplog):
    class Parts(Foreign):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self.fc(F.relu(self.again(F.relu(self.conv(x)))).mean((2, 3))), y)

    fit_foreign(Parts(), Signal(), folder=tmp_path / "parts", epochs=1)
    assert caplog.text.count("calls parts of the module instead of the module itself (call self(x)") == 1
    caplog.clear()
    fit_foreign(Foreign(), Signal(), folder=tmp_path / "whole", epochs=1)
    assert "no activations" not in caplog.text


def test_layers_of_an_optimizer_that_steps_later_have_the_gradient_of_their_loss(tmp_path):
    """As in Lightning's example of a GAN: images are made before the discriminator's step, and passed back through after it."""

    class Gan(Foreign):
        def __init__(self, adversarial: bool):
            super().__init__()
            self.discriminator, self.adversarial, self.automatic_optimization = nn.Linear(3, 1), adversarial, False

        def training_step(self, batch, batch_idx):
            made, (discriminator, generator) = self(batch[0]), self.optimizers()
            if self.adversarial:
                self.toggle_optimizer(discriminator)
                discriminator.zero_grad()
                self.manual_backward(self.discriminator(made.detach()).square().mean())
                discriminator.step()
                self.untoggle_optimizer(discriminator)
            generator.zero_grad()
            self.manual_backward(self.discriminator(made).mean())
            generator.step()

        def configure_optimizers(self):
            made = [weight for name, weight in self.named_parameters() if not name.startswith("discriminator")]
            return [torch.optim.SGD(weights, lr=0.0) for weights in (self.discriminator.parameters(), made)]

    for adversarial in (True, False):
        torch.manual_seed(2)  # of the dropout
        fit_foreign(Gan(adversarial), Signal(), folder=tmp_path / str(adversarial), epochs=1)
    both, alone = (logged(tmp_path / str(adversarial), "net", 0) for adversarial in (True, False))
    of_made = [name for name in alone if name.startswith(("layer01/", "layer02/", "layer03/"))]
    assert {name: both.get(name) for name in of_made} == {name: alone[name] for name in of_made}
    assert "layer01/gradient" in of_made and "layer03/gradient" in of_made


def test_weights_have_their_gradients_also_where_these_are_dropped_right_after_the_step(tmp_path):
    """As in Lightning's examples of manual optimization."""

    class Manual(Foreign):
        def __init__(self, late: bool):
            super().__init__()
            self.automatic_optimization, self.late = False, late

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            if not self.late:
                optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()
            if self.late:
                optimizer.zero_grad()

    for late in (False, True):
        torch.manual_seed(2)  # of the dropout
        fit_foreign(Manual(late), Signal(), folder=tmp_path / str(late), epochs=1)
    both = [logged(tmp_path / str(late), "net", 0) for late in (False, True)]
    assert both[0] == both[1] and "layer01/weight_gradient" in both[0]


def test_a_gradient_is_the_one_that_the_optimizer_gets(tmp_path):
    """Clipped, and before a step that works on it in place, as on a GPU by default."""

    class Nesterov(Foreign):
        def __init__(self, in_place: bool) -> None:
            super().__init__()
            self.in_place = in_place

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1, 0.9, nesterov=True, foreach=self.in_place)

    found = []
    for in_place in (False, True):
        folder = tmp_path / str(in_place)
        options = {"gradient_clip_val": 1e-3, "callbacks": [Signal(every_n_steps=1)], "logger": [RunLogger(folder)]}
        torch.manual_seed(2)  # of the dropout
        trainer(1, **options).fit(Nesterov(in_place), DataLoader(images(), batch_size=10))
        found.append(logged(folder, "net", 2))
    assert found[1] == pytest.approx(found[0], rel=1e-5) and 0 < found[0]["layer01/weight_gradient"] < 1e-3


def test_a_compiled_part_is_named(tmp_path, caplog):
    module = Foreign()
    module.again._compiled_call_impl = module.again._call_impl  # as `compile()` leaves it, without compiling
    fit_foreign(module, Signal(), folder=tmp_path, epochs=1)
    assert "in the compiled parts of 'net' (again): compiled" in caplog.text


@pytest.mark.parametrize("size", [20, 7])
@pytest.mark.parametrize("make", [lambda: arm(True).net(), lambda: CifarResNet(8, width=4)], ids=["free", "normalised"])
def test_a_net_that_is_not_trained_is_measured_on_its_probe(make, size):
    """As one batch, but for neighbours, which are within one; before training with the statistics of the probe."""
    net = make()
    found = dict(flatten(Signal().evaluate(context(net, eval_batch_size=size))))
    assert any("branch_ratio" in key for key in found) and "signal/layer02/update" not in found
    ((images_, labels),) = context(net).batches()
    measured = with_statistics_of(images_, net)
    watch = SignalWatch(measured)
    F.cross_entropy(measured(images_), labels).backward()
    by_hand = profile(watch.stop())
    keys = [key for key in by_hand if not key.endswith("update") and (size == 20 or "correlation" not in key)]
    assert [found[f"signal/{key}"] for key in keys] == pytest.approx([by_hand[key] for key in keys], rel=1e-4)


def test_training_that_raises_leaves_no_hook():
    class Failing(callbacks.Scalar):
        def on_train_batch_end(self, trainer, pl_module, *_):
            raise KeyError("of another callback")

    module = classifier()
    with pytest.raises(KeyError):
        fit(module, 1, callbacks=[Failing("one", lambda _: 1.0, at_start=False), Signal()])
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.nets.modules())
