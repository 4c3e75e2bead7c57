"""Cost, penalty, metrics, and what a wrong model is told."""

import copy
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from lightning_app.common.errors import UserError
from lightning_app.datamodules import GaussianMixture
from lightning_app.identity import id_entries
from lightning_app.modules import ImageClassifier
from lightning_app.modules.backends import Pass, one_by_one
from lightning_app.modules.cost import Penalty, RiskAndError, add_gradients
from lightning_app.modules.members import Arm
from lightning_app.networks import CifarResNet, ResidualMLP, SimplifiedNet
from tests.helpers import arm, classifier, digits, fit, same_weights, sgd, trainer


def test_penalty_and_gradient_match_autograd():
    net = SimplifiedNet(8, residual=False).double()
    rho = {name: id_entries(net.state_dict()[name]).double() for name in net.id_weights()}
    loss = sum(0.5 * 0.3 * ((w - rho.get(name, 0)) ** 2).sum() for name, w in net.named_parameters())
    expected = torch.autograd.grad(loss, list(net.parameters()))
    penalty = Penalty(net, 0.3, "all", "identity")
    for w in net.parameters():
        w.grad = torch.zeros_like(w)
    add_gradients([penalty])
    assert penalty.value() == pytest.approx(loss.item(), rel=1e-12)
    assert all(torch.allclose(w.grad, g, atol=1e-15) for w, g in zip(net.parameters(), expected))


def test_processes_send_statistics_of_nets_and_no_centres_of_penalties(tmp_path):
    """Before each pass; a centre never changes, and is as large as its weights."""
    bank = {"residual": arm(True), "plain": Arm(twin_of="residual")}
    module = fit(classifier(bank | {"normalised": Arm(net=lambda: CifarResNet(8, True, width=2))}), 1)
    assert any("centre" in name for name, _ in module.named_buffers())
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        sent = DistributedDataParallel(module).named_module_buffers
    finally:
        distributed.destroy_process_group()
    of_nets = {f"nets.{name}" for name, _ in module.nets.named_buffers()}
    assert {*sent} == of_nets and any(name.endswith("running_mean") for name in sent)


@pytest.mark.parametrize(("decays", "dimensions"), [("all", 1), ("weights", 2), ("none", 9)])
def test_which_parameters_decay_is_explicit(decays, dimensions):
    net = SimplifiedNet(5)
    torch.nn.init.ones_(net.conv0.bias)
    held = [w for w in net.parameters() if w.ndim >= dimensions]
    expected = 0.5 * sum(float(w.detach().double().square().sum()) for w in held)
    assert Penalty(net, 1.0, decays).half_norm() == pytest.approx(expected, rel=1e-12)


def test_a_complex_weight_has_a_penalty_of_both_its_parts():
    net = nn.ParameterDict({"real": torch.tensor([2.0]), "complex": torch.tensor([3.0 + 4.0j])})
    assert Penalty(net, 1.0).half_norm() == 0.5 * (4 + 25)


def test_the_centre_is_found_in_a_compiled_net_and_missed_where_weights_are_computed():
    net = SimplifiedNet(5, residual=False)
    found = Penalty(net, 1.0, centre="identity").value()
    assert Penalty(torch.compile(net), 1.0, centre="identity").value() == found
    parts = copy.deepcopy(net)
    parts.blocks[0] = torch.compile(parts.blocks[0])
    assert Penalty(parts, 1.0, centre="identity").value() == found
    torch.nn.utils.parametrizations.weight_norm(net.blocks[0].conv)
    with pytest.raises(UserError, match=r"as parameters, and 'blocks\.0\.conv\.weight' of SimplifiedNet is none"):
        Penalty(net, 1.0, centre="identity")


def test_the_centre_of_a_weight_with_several_names():
    """As of a block that is used again and again."""

    class Recurrent(nn.Module):
        def __init__(self, names) -> None:
            super().__init__()
            self.blocks, self.names = nn.ModuleList([nn.Conv2d(2, 2, 3, bias=False)] * 3), names

        def id_weights(self) -> list[str]:
            return [f"blocks.{name}.weight" for name in self.names]

    for names in ((0,), (0, 1, 2), (2,)):
        net = Recurrent(names)
        nn.init.dirac_(net.blocks[0].weight)
        assert Penalty(net, 1.0, centre="identity").value() == 0 < Penalty(net, 1.0).value()


@pytest.mark.parametrize(("scale", "decay"), [("one", 1e-2), ("batch", 32 * 1e-2)])  # batches of 32, the last one of 4
def test_coupled_decay_equals_torch_sgd_where_the_centre_is_zero(scale, decay):
    ours = fit(classifier({"residual": arm(True)}, weight_decay=decay, penalty_scale=scale))
    torch_decay = classifier({"residual": arm(True)}, weight_decay=0.0)
    torch_decay._make_optimizer = lambda p: sgd(p)
    torch_decay.configure_optimizers = lambda: torch.optim.SGD(torch_decay.parameters(), 0.05, 0.9, weight_decay=1e-2)
    fit(torch_decay)
    assert same_weights(ours.members[0].net, torch_decay.members[0].net)


def test_metrics_are_those_of_a_plain_loop():
    data = digits()
    module = fit(classifier({"net": arm(True)}), data=data)
    numbers = module.metrics()["net"]
    net = module.members[0].net.eval()
    for split, loader in zip(data.eval_splits, data.val_dataloader()):
        batches = list(loader)
        images, labels = (torch.cat(parts) for parts in zip(*batches))
        with torch.no_grad():
            logits = net(images)
        assert numbers[f"{split}/risk"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
        assert numbers[f"{split}/error"] == pytest.approx(float((logits.argmax(1) != labels).float().mean()), abs=1e-7)
    half_norm = 0.5 * sum(float(w.detach().double().square().sum()) for w in net.parameters())
    assert numbers["train/penalty"] == pytest.approx(1e-4 * half_norm, rel=1e-9)
    assert numbers["train/cost"] == pytest.approx(numbers["train/risk"] + 1e-4 * half_norm, rel=1e-12)
    assert numbers["train/cost_paper"] == pytest.approx(
        numbers["train/risk"] + 1e-4 * half_norm / data.batch_size, rel=1e-12
    )


def test_penalty_scale_batch_makes_the_cost_the_papers():
    numbers = fit(classifier({"net": arm(True)}, penalty_scale="batch")).metrics()["net"]
    assert numbers["train/cost"] == pytest.approx(numbers["train/cost_paper"], rel=1e-12)


def test_running_risk_weighs_batches_by_their_size():
    metric = RiskAndError()
    metric.update(torch.tensor(1.0), torch.eye(4), torch.arange(4))
    metric.update(torch.tensor(4.0), torch.eye(4)[:2], torch.tensor([1, 1]))
    metric.update(torch.tensor(float("nan")), torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert metric.compute() == {"risk": 2.0, "error": pytest.approx(1 / 6)}


def test_the_mean_of_equal_risks_is_that_risk_to_its_last_bit():
    metric, risk = RiskAndError(), torch.tensor(0.1)
    for samples in (3, 7):
        metric.update(risk, torch.eye(10)[:samples], torch.arange(samples))
    assert metric.compute()["risk"] == pytest.approx(float(risk), rel=1e-15)


@pytest.mark.parametrize("batches", [0, 2])
def test_sums_that_are_put_back_are_those_of_before(batches):
    """Before the first batch there is no mean to be logged, after a resume neither."""
    before, after, elsewhere = RiskAndError(), RiskAndError(), RiskAndError()
    for _ in range(batches):
        before.update(torch.tensor(0.5), torch.eye(4), torch.tensor([0, 1, 2, 2]))
    after.restore(before.sums())
    elsewhere.restore(before.sums(), ours=False)
    assert before.update_called == after.update_called == elsewhere.update_called == bool(batches)
    assert int(elsewhere.count) == 0
    if batches:
        assert after.compute() == before.compute() == {"risk": 0.5, "error": 0.25}


def test_of_outputs_that_are_no_numbers_neither_risk_nor_error_is_one():
    """Their largest entry would be some class, and right for some of the samples."""
    metric = RiskAndError()
    metric.update(torch.tensor(1.0), torch.eye(4), torch.arange(4))
    metric.update(torch.tensor(math.nan), torch.full((2, 4), math.nan), torch.tensor([0, 1]))
    assert all(map(math.isnan, metric.compute().values()))


def test_an_evaluation_within_an_epoch_is_none_of_the_epoch_s_end():
    class Kept(pl.Callback):
        def __init__(self):
            self.numbers = []

        def on_train_epoch_end(self, trainer, pl_module):
            self.numbers.append({name.partition("/")[0] for name in pl_module.metrics()["net"]})

    for every, splits in ((2, {"train", "test"}), (3, {"train"})):  # of the four steps of an epoch
        fit(classifier({"net": arm(True)}), epochs=1, val_check_interval=every, callbacks=[kept := Kept()])
        assert kept.numbers == [splits]


@pytest.mark.parametrize(("batches", "found"), [(1, False), (-1, True)])
def test_a_few_batches_tried_out_before_training_are_no_evaluation(batches, found):
    class Kept(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            self.numbers = pl_module.metrics()["net"]

    fit(classifier({"net": arm(True)}), epochs=1, num_sanity_val_steps=batches, callbacks=[kept := Kept()])
    assert ("test/error" in kept.numbers) is found


def test_class_156_of_labels_in_bytes_counts():
    """-100, the label that does not, becomes 156 where it is compared with bytes."""
    metric = RiskAndError()
    metric.update(torch.tensor(2.0), torch.eye(200)[[156, 0]], torch.tensor([156, 3], dtype=torch.uint8))
    assert int(metric.count) == 2 and metric.compute() == {"risk": 2.0, "error": 0.5}


def test_samples_without_a_label_count_neither_in_risk_nor_in_error():
    metric, logits = RiskAndError(), torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    for labels in (torch.tensor([1, -100]), torch.tensor([-100, -100])):
        metric.update(F.cross_entropy(logits, labels), logits, labels)
    assert metric.compute() == {
        "risk": pytest.approx(float(F.cross_entropy(logits[:1], torch.tensor([1])))),
        "error": 0.0,
    }
    assert int(metric.count) == 1


def test_the_mean_over_ranks_is_that_over_the_labels_that_count_stream_by_stream():
    """Here 2 of 3 labels of one stream and none of another; the other rank has 1 and 0 that count."""

    def sum_with_other_rank(own: torch.Tensor, reduce_op: str) -> torch.Tensor:
        assert reduce_op == "sum"
        return own.add_(torch.tensor([1, 0]))  # in place, as torch.distributed

    module = classifier({"net": arm(True)})
    module._trainer = SimpleNamespace(world_size=2, strategy=SimpleNamespace(reduce=sum_with_other_rank))
    labels = torch.tensor([1, -100, 3]), torch.tensor([-100, -100, -100])
    passes = [Pass(nn.Linear(10, 10), torch.zeros(3, 10), each, 0) for each in labels]
    some, none = module._weighted(passes)
    assert some.weight == 2 * 2 / 3 and math.isnan(none.weight)
    (risk, _), (nothing, _) = one_by_one([some, replace(none, weight=0)], torch.Tensor.backward)
    assert risk > 0 == nothing
    assert all(torch.equal(w.grad, torch.zeros_like(w)) for w in none.net.parameters())


def test_a_rank_whose_share_of_a_batch_is_empty_asks_no_net():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3 * 32 * 32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x.view(x.size(0), -1))

    module, metric = classifier({"net": Arm(net=Flat)}), RiskAndError()
    module._evaluate(
        [("net", module.nets["net"], metric)], (torch.empty(0, 3, 32, 32), torch.empty(0, dtype=torch.long))
    )
    assert metric.update_called and int(metric.count) == 0


def test_batches_that_overfit_are_refused_as_their_order_depends_on_the_epoch():
    with pytest.raises(UserError, match=r"overfit_batches .* set data\.train_limit"):
        fit(classifier(), overfit_batches=1)


def test_learning_rate_schedule_steps_after_each_epoch():
    module = classifier(scheduler=lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.1))
    runner = trainer(3)
    runner.fit(module, datamodule=digits())
    assert runner.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05 * 0.01)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": lambda p: torch.optim.SGD(p, 0.1, weight_decay=1e-4)}, "model.weight_decay"),
        (
            {"optimizer": lambda p: torch.optim.SGD([{"params": [*p], "weight_decay": 1e-4}], 0.1)},
            "model.weight_decay",
        ),
        ({"optimizer": lambda p: torch.optim.ASGD(p, 0.1)}, "model.optimizer: expected lambd 0, got 0.0001"),
        ({"arms": {"net": arm(True, num_classes=7)}}, r"outputs \(7,\) for a sample, but the data have 10 classes"),
        (
            {"arms": {"net": arm(True, in_channels=1)}},
            "cannot take samples of shape .*set the net's in_channels, here 1, to 3",
        ),
    ],
)
def test_wrong_models_get_an_error_before_training(wrong, message):
    with pytest.raises(UserError, match=message):
        fit(classifier(**wrong))


def test_net_or_arms_but_not_both_or_neither():
    for wrong in ({}, {"net": SimplifiedNet, "arms": {"a": arm(True)}}):
        with pytest.raises(UserError, match="either"):
            ImageClassifier(sgd, **wrong)


@pytest.mark.slow
def test_fast_switches_change_rounding_only():
    switches = ({"channels_last": False}, {"channels_last": True}, {"channels_last": True, "compile": True})
    short = {"epochs": 1, "data": digits(train_limit=64), "limit_val_batches": 0}  # one graph is compiled
    plain, *others = (fit(classifier({"net": arm(True)}, **switch), **short).members[0].net for switch in switches)
    for fast in others:
        for one, other in zip(plain.parameters(), fast.parameters()):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_a_second_stage_does_not_compile_again(monkeypatch):
    calls = []
    monkeypatch.setattr(
        nn.Module, "compile", lambda net, **_: calls.append(setattr(net, "_compiled_call_impl", net._call_impl))
    )
    module = classifier({"net": arm(True)}, compile=True)
    fit(module, epochs=1)
    trainer().validate(module, datamodule=digits(), verbose=False)
    assert len(calls) == 1


def test_bfloat16_training_is_finite_and_learns_in_float32_weights():
    module = classifier({"net": arm(True)})
    start, seen = copy.deepcopy(module.nets), set()
    hook = module.nets["net"].register_forward_hook(lambda net, inputs, outputs: seen.add(outputs.dtype))
    fit(module, epochs=1, precision="bf16-mixed")
    hook.remove()
    assert seen == {torch.bfloat16}
    assert math.isfinite(module.metrics()["net"]["train/risk"]) and not same_weights(start, module.nets)
    assert next(module.parameters()).dtype == torch.float32


def test_sums_are_exact_in_whatever_precision_nets_are_trained():
    """In bfloat16 a sum of 256 grows no more when 1 is added."""
    module = fit(classifier({"net": arm(True)}), epochs=1, precision="bf16-true")
    metrics = module.running["net"], *(split["net"] for split in module.evaluated)
    assert next(module.nets.parameters()).dtype == torch.bfloat16
    assert all(metric.risk_sum.dtype == metric._defaults["risk_sum"].dtype == torch.float64 for metric in metrics)
    metrics[0].reset()
    for _ in range(1000):
        metrics[0].update(torch.tensor(2.0), torch.eye(10)[:1], torch.zeros(1, dtype=torch.long))
    assert metrics[0].compute()["risk"] == 2.0


def loaded(samples: Tensor, classes: int = 3) -> DataLoader:
    return DataLoader(TensorDataset(samples, torch.arange(len(samples)) % classes), 4)


def test_evaluation_loaders_need_a_name_each():
    class Named(pl.LightningDataModule):
        eval_splits = "val", "test"

        def train_dataloader(self):
            return loaded(torch.randn(8, 5))

        def val_dataloader(self):
            return [loaded(torch.randn(8, 5)) for _ in range(2)]

    def linear() -> ImageClassifier:
        return ImageClassifier(sgd, net=lambda: nn.Linear(5, 3))

    numbers = fit(linear(), epochs=1, data=Named()).metrics()["net"]
    assert {"val/risk", "test/risk"} <= numbers.keys()
    one, two = Named().train_dataloader(), Named().val_dataloader()
    with pytest.raises(
        UserError, match=r"2 loaders or more and the names val: .* attribute eval_splits names them all"
    ):
        trainer(1).fit(linear(), one, two)
    with pytest.raises(UserError, match="2 loaders or more and the names test: give one loader"):
        trainer(1).test(linear(), two, verbose=False)


class Bag(nn.Module):
    """The mean of embeddings, whose gradient may have the rows of a batch only."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


def test_sparse_gradients_train_the_same_net():
    tokens = torch.randint(7, (16, 5), generator=torch.Generator().manual_seed(0))
    nets = []
    for sparse in (True, False):
        plain = partial(torch.optim.SGD, lr=0.05)
        module = ImageClassifier(plain, net=partial(Bag, sparse), weight_decay=1e-2)
        trainer(2).fit(module, loaded(tokens))
        nets.append(module.members[0].net)
    assert same_weights(*nets)


@pytest.mark.parametrize("norm", ["eq22", "before_relu", "after_relu"])
def test_a_batch_of_one_sample_that_cannot_be_normalised_is_an_error_message(norm):
    data = GaussianMixture(samples=51, test_samples=10, dimensions=4, batch_size=10)
    module = classifier(net=lambda: ResidualMLP(4, 5, 3, norm=norm), channels_last=False)
    with pytest.raises(UserError, match=r"one value per channel: Expected more than 1 value .* Set data.batch_size"):
        fit(module, epochs=1, data=data)


def test_any_network_trains():
    import torchvision

    module = classifier(net=lambda: torchvision.models.squeezenet1_1(num_classes=10))
    start = copy.deepcopy(module.nets)
    fit(module, epochs=1, limit_train_batches=1, limit_val_batches=1)
    assert math.isfinite(module.metrics()["net"]["train/risk"]) and not same_weights(start, module.nets)


def test_a_checkpoint_that_lists_the_place_once_for_each_stream_still_resumes(tmp_path):
    """As they were before a bank's streams were one loader."""
    save = ModelCheckpoint(tmp_path, filename="middle", every_n_train_steps=2, save_top_k=1)
    fit(classifier(seeds=2), epochs=1, enable_checkpointing=True, callbacks=[save], max_steps=2)
    checkpoint = torch.load(tmp_path / "middle.ckpt", weights_only=True)
    places = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    places.append(dict(places[0]))
    torch.save(checkpoint, tmp_path / "old.ckpt")
    whole, resumed = fit(classifier(seeds=2), epochs=1), classifier(seeds=2)
    trainer(1).fit(resumed, datamodule=digits(), ckpt_path=tmp_path / "old.ckpt")
    assert all(same_weights(one.net, other.net) for one, other in zip(whole.members, resumed.members))


def test_the_progress_bar_has_the_mean_over_seeds(tmp_path):
    run = trainer(1)
    run.fit(classifier(seeds=3), datamodule=digits())
    errors = {name: float(value) for name, value in run.callback_metrics.items() if name.startswith("test/error/")}
    for arm_name in ("plain", "residual"):
        mean = sum(errors[f"test/error/{arm_name}-seed{seed:02d}"] for seed in range(3)) / 3
        assert run.progress_bar_metrics[f"test/error/{arm_name}"] == pytest.approx(mean, rel=1e-6)
    assert len(run.progress_bar_metrics) == 2
