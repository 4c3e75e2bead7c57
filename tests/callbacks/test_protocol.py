"""Callbacks in other people's projects: a LightningModule that knows nothing of ours, and every callback of ours on it."""

import gc
import logging
import weakref
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from torchmetrics import MeanMetric

import callbacks
from callbacks import HessianSpectrum, LayerCushion, TrainingMetrics, WeightMass
from callbacks.context import MeasureContext
from callbacks.protocol import PROBE, contexts_of, loss_of, owner_of, probe_of, trained_here
from lightning_app.common.errors import UserError
from lightning_app.measures import weight_mass
from lightning_app.measures.core.losses import cross_entropy
from lightning_app.measures.weights.absorption import weight_norm
from lightning_app.networks import NEVER_CALLED, SimplifiedNet, layers_of
from lightning_app.runs import RunFolder
from lightning_app.runs.loggers import RunLogger
from lightning_app.runs.members import members_of
from tests.helpers import classifier, same_weights, shipped, trainer

MEASURES = [*shipped(callbacks.Measure), callbacks.TwinDivergence]


class Foreign(pl.LightningModule):
    """As one writes it: layers as attributes, a forward, a training step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.dropout, self.fc = nn.Dropout(0.2), nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.fc(self.dropout(x + F.relu(self.again(x))).mean((2, 3)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Wrapping(Foreign):
    """Or a network in an attribute."""

    def __init__(self, net: nn.Module) -> None:
        pl.LightningModule.__init__(self)
        self.network = net

    def forward(self, x):
        return self.network(x)


def images(count: int = 90, classes: int = 3) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 1, 6, 6, generator=draw), torch.arange(count) % classes)


def loader(dataset: Dataset | None = None) -> DataLoader:
    return DataLoader(dataset or images(), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))


def fit(module: pl.LightningModule, *watching, data=None, folder=None, epochs: int = 2) -> pl.Trainer:
    torch.manual_seed(2)
    made = trainer(epochs, callbacks=list(watching), logger=[RunLogger(folder)] if folder else False)
    made.fit(module, loader() if data is None else data)
    return made


def test_every_measure_on_a_foreign_module_logs_and_leaves_no_trace(tmp_path):
    watched, alone = Foreign(), Foreign()
    fit(watched, *(measure() for measure in MEASURES), folder=tmp_path)
    fit(alone)
    assert same_weights(watched, alone)
    log = RunFolder(tmp_path).log()
    expected = {"weight_mass", "cushion", "probe", "bn_lambda", "weight_norm", "drive", "hessian", "travel", "noise"}
    assert {name.split("/")[0] for name in log["name"]} >= expected | {"depth"}  # an addition of tensors is a branch
    assert set(log["member"]) == {"net", ""}
    last = log[log["epoch"] == 2].set_index("name")["value"]
    assert last["weight_mass/all"] == weight_mass(layers_of(watched))[""].all
    x, y = images()[:]
    with torch.no_grad():
        risk = F.cross_entropy(watched.eval()(x), y)
    assert last["probe/risk"] == pytest.approx(float(risk), rel=1e-6)


def test_a_net_in_an_attribute_is_measured_itself():
    net = SimplifiedNet(5, residual=True, width=4)
    (found,) = members_of(Wrapping(net))
    assert found[:2] == ("net", net) and any(layer.skip for layer in layers_of(found.net))


def test_a_moving_average_beside_the_net_is_no_part_of_it():
    module = Wrapping(net := SimplifiedNet(5, residual=True, width=4))
    module.average = AveragedModel(net)
    assert [member.net for member in members_of(module)] == [net]
    alone = Wrapping(AveragedModel(net))
    assert members_of(alone)[0].net is next(alone.children())


def test_the_module_itself_where_its_layers_are_attributes():
    module = Foreign()
    assert members_of(module)[0][:2] == ("net", module)


def test_several_networks_are_named_in_members():
    class Two(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

    with pytest.raises(
        UserError,
        match=r"cannot tell which network of Two to measure: it has parameters in generator, critic and no forward.*`members`",
    ):
        members_of(Two())
    two = Two()
    two.members = [("critic", two.critic), ("generator", two.generator)]
    critic, _ = contexts_of(trainer(), two, 3)
    assert (critic.name, critic.net, critic.epoch) == ("critic", two.critic, 3)
    assert critic.others == {"generator": "generator"}


def test_the_others_of_a_net_are_of_its_seed():
    """With which `DistanceFromStart` compares: nets of one seed start from the same draws."""
    nets = {each.name: each for each in contexts_of(trainer(), classifier(seeds=2), 0)}
    assert len({(each.arm, each.seed) for each in nets.values()}) == 4
    for each in nets.values():
        ((arm, name),) = each.others.items()
        assert arm == nets[name].arm != each.arm and nets[name].seed == each.seed


LISTS = [nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleList([nn.Sequential(nn.ReLU(), nn.Tanh())])]


@pytest.mark.parametrize("members", [{"net": nn.Linear(2, 2)}, *LISTS, 3])
def test_members_that_mean_another_thing_are_refused(members):
    module = Foreign()
    module.members = members
    with pytest.raises(UserError, match=r"Foreign\.members: expected pairs .* rename it"):
        members_of(module)


@pytest.mark.parametrize("names", [("net", "net"), ("", "b"), ("a/b", "a")])
def test_names_of_members_tell_them_apart(names):
    module = Foreign()
    module.members = [(name, module) for name in names]
    with pytest.raises(UserError, match=r"the names in Foreign\.members must be unique"):
        members_of(module)


def test_a_list_of_layers_is_no_network_the_module_is():
    class Listed(Wrapping):
        def forward(self, x):
            for layer in self.network:
                x = layer(x)
            return x

    module = Listed(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))
    assert members_of(module)[0].net is module


def test_a_network_may_be_a_single_layer(tmp_path):
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    fit(Wrapping(nn.Linear(5, 3)), LayerCushion(), data=loader(TensorDataset(x, torch.arange(40) % 3)), folder=tmp_path)
    (row,) = RunFolder(tmp_path).layers()
    assert (row.layer, row.path, row.kind, row.reason) == ("layer01", "", "Linear", "")
    assert "cushion/layer01/median" in set(RunFolder(tmp_path).log()["name"])


def test_a_network_without_a_layer_that_has_a_cushion_still_has_a_risk(tmp_path):
    x = torch.randn(40, 1, 5, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv1d(1, 3, 5), nn.Flatten())
    fit(Wrapping(net), LayerCushion(), data=loader(TensorDataset(x, torch.arange(40) % 3)), folder=tmp_path)
    log = RunFolder(tmp_path).log().set_index(["epoch", "name"])["value"]
    with torch.no_grad():
        risk = F.cross_entropy(net.eval()(x), torch.arange(40) % 3)
    assert log[2, "probe/risk"] == pytest.approx(float(risk), rel=1e-6)


def test_a_module_without_networks_is_refused():
    with pytest.raises(UserError, match=r"it has no parameters and no forward\(\)\. Give"):
        members_of(pl.LightningModule())
    own, called = pl.LightningModule(), type("Called", (pl.LightningModule,), {"forward": lambda self, x: x})()
    own.weight = nn.Parameter(torch.ones(2))
    with pytest.raises(UserError, match=r"it has parameters of its own and no forward\(\)\. Give"):
        members_of(own)
    with pytest.raises(UserError, match=r"it has no parameters\. Give"):
        members_of(called)


def test_the_modules_own_loss_is_taken(tmp_path):
    module = Foreign()
    module.criterion = nn.CrossEntropyLoss(label_smoothing=0.3)
    made = fit(module, LayerCushion(), folder=tmp_path)
    log = RunFolder(tmp_path).log().set_index(["epoch", "name"])["value"]
    with torch.no_grad():
        x, y = (torch.cat(part) for part in zip(*probe_of(made)))
        assert log[2, "probe/risk"] == pytest.approx(float(module.criterion(module.eval()(x), y)), rel=1e-6)


def test_a_builtin_is_a_loss_although_it_has_no_signature():
    module = Foreign()
    module.loss_fn = torch.dist  # the 2-norm of the difference
    assert loss_of(module)(torch.ones(4), torch.zeros(4)) == 2


def test_a_loss_of_other_arguments_is_refused_by_measures_that_need_one(tmp_path):
    class Odd(Foreign):
        def loss(self, batch):
            return batch

    with pytest.raises(UserError, match=r"measures call Odd\.loss\(outputs, labels\)"):
        loss_of(Odd())(torch.zeros(1), torch.zeros(1))
    fit(Odd(), WeightMass(), folder=tmp_path)
    assert "weight_mass/all" in set(RunFolder(tmp_path).log()["name"])
    module = Foreign()
    module.criterion = nn.GaussianNLLLoss()
    with pytest.raises(UserError, match=r"Foreign\.criterion\(outputs, labels\).* takes other arguments .*'var'"):
        loss_of(module)(torch.zeros(1), torch.zeros(1))


def test_regression_needs_a_loss_and_has_no_error(tmp_path):
    x = torch.randn(40, 5)
    data = loader(TensorDataset(x, x.sum(1, keepdim=True)))

    class Regression(Wrapping):
        def training_step(self, batch, batch_idx):
            return F.mse_loss(self(batch[0]), batch[1])

    module = Regression(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)))
    needed = r"cross-entropy, which needs class numbers .* torch.float32 .* loss\(outputs, labels\)"
    with pytest.raises(UserError, match=needed):
        fit(module, LayerCushion(), data=data)
    module.loss = F.mse_loss
    fit(module, LayerCushion(), HessianSpectrum(), data=data, folder=tmp_path)
    log = RunFolder(tmp_path).log().set_index(["epoch", "name"])["value"]
    assert log[2, "probe/risk"] > 0 and (2, "probe/error") not in log.index
    assert log[2, "hessian/top1"] > 0


def test_samples_are_taken_once_evenly_and_with_seeded_draws():
    asked = []

    class Noisy(Dataset):
        def __len__(self):
            return 5 * PROBE // 2

        def __getitem__(self, row):
            asked.append(row)
            return torch.full((1, 6, 6), float(row)) + torch.rand(()), row % 3

    module = Foreign()
    made = fit(module, data=DataLoader(Noisy(), batch_size=500), epochs=1)
    asked.clear()
    state = torch.get_rng_state()
    first, again = (torch.cat([x for x, _ in probe_of(made)]) for _ in range(2))
    assert torch.equal(first, again) and torch.equal(torch.get_rng_state(), state)
    assert asked == [5 * number // 2 for number in range(PROBE)]


def test_samples_are_of_those_that_are_trained_on():
    data = TensorDataset(torch.arange(40.0).reshape(-1, 1, 1, 1).expand(-1, 1, 6, 6), torch.arange(40) % 3)
    part = DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(24)))
    batched = DataLoader(data, batch_sampler=BatchSampler(SubsetRandomSampler(range(24)), 8, drop_last=False))
    for loaded in (part, batched):
        inputs = torch.cat([x for x, _ in probe_of(fit(Foreign(), data=loaded, epochs=1))])
        assert inputs[:, 0, 0, 0].tolist() == [*range(24)]
    in_order = BatchSampler(SequentialSampler(data), 8, drop_last=False)
    for loaded in (DataLoader(data, batch_size=8), DataLoader(data, batch_sampler=in_order)):
        few = trainer(1, overfit_batches=2)
        few.fit(Foreign(), loaded)
        assert torch.cat([x for x, _ in probe_of(few)])[:, 0, 0, 0].tolist() == [*range(16)]


class Transferring(Foreign):
    """Pictures come as bytes, and training's are noisy."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return dict(zip(("bytes", "class"), batch))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch["bytes"], batch["class"]
        noise = torch.rand_like(x.float()) if self.trainer.training and self.training else 0
        return x.float() / 255 + noise, y


def test_samples_go_through_the_hooks_of_a_batch_as_in_validation(tmp_path):
    pictures = torch.randint(256, (40, 1, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    data, module = DataLoader(TensorDataset(pictures, torch.arange(40) % 3), batch_size=16), Transferring()
    made = fit(module, LayerCushion(), data=data, epochs=1, folder=tmp_path)
    inputs, labels = (torch.cat(part) for part in zip(*probe_of(made)))
    assert torch.equal(inputs, pictures.float() / 255)
    with torch.no_grad():
        risk = F.cross_entropy(module.eval()(inputs), labels)
    log = RunFolder(tmp_path).log().set_index(["epoch", "name"])["value"]
    assert log[1, "probe/risk"] == pytest.approx(float(risk), rel=1e-6)


def test_samples_have_the_precision_of_training():
    made = trainer(1, precision="64-true")
    made.fit(Foreign(), DataLoader(images(16), batch_size=16))
    ((inputs, _),) = probe_of(made)
    assert inputs.dtype == torch.float64


def test_another_fit_has_samples_of_its_own():
    def tenfold(samples):
        x, y = torch.utils.data.default_collate(samples)
        return 10 * x, y

    data, module = images(16), Foreign()
    (first,) = probe_of(fit(module, data=DataLoader(data, batch_size=16), epochs=1))
    (second,) = probe_of(fit(module, data=DataLoader(data, batch_size=16, collate_fn=tenfold), epochs=1))
    (third,) = probe_of(fit(Foreign(), data=DataLoader(data, batch_size=16, collate_fn=tenfold), epochs=1))
    assert torch.equal(10 * first[0], second[0]) and torch.equal(third[0], second[0])


def test_samples_stay_where_loaders_are_made_anew():
    class Growing(pl.LightningDataModule):
        made = 0

        def train_dataloader(self):
            self.made += 1
            return DataLoader(
                TensorDataset(torch.full((8, 1, 6, 6), float(self.made)), torch.arange(8) % 3), batch_size=4
            )

    class Seen(LayerCushion):
        def measure(self, context):
            means.append(float(next(context.batches())[0].mean()))
            return {}

    for means in ([], []):
        data, module = Growing(), Foreign()
        made = trainer(3, callbacks=[Seen()], reload_dataloaders_every_n_epochs=1)
        made.fit(module, datamodule=data)
        assert data.made == 3 and means == [1.0] * 4
        made.fit_loop.max_epochs = 4
        made.fit(module, DataLoader(TensorDataset(torch.full((8, 1, 6, 6), 9.0), torch.arange(8) % 3), batch_size=4))
        assert means[4:] == [9.0]  # other data


def test_a_module_that_its_loader_knows_is_forgotten_with_it():
    class Collating(Foreign):
        def collate(self, samples):
            return torch.utils.data.default_collate(samples)

    module = Collating()
    probe_of(fit(module, data=DataLoader(images(16), batch_size=16, collate_fn=module.collate), epochs=1))
    there = weakref.ref(module)
    del module
    gc.collect()
    assert there() is None


def test_what_a_loss_logs_while_it_is_measured_is_dropped(tmp_path):
    class Logging(Foreign):
        def loss(self, outputs, labels):
            loss = F.cross_entropy(outputs, labels)
            self.log("train_loss", loss, on_epoch=True, on_step=False)
            return loss

        def training_step(self, batch, batch_idx):
            return self.loss(self(batch[0]), batch[1])

    logged = [fit(Logging(), *measures, epochs=1).callback_metrics for measures in ((), (LayerCushion(),))]
    assert "log" not in vars(Logging())
    assert logged[0]["train_loss"] == logged[1]["train_loss"]


def test_labels_that_are_no_classes_have_no_error(tmp_path):
    class Binary(Wrapping):
        def loss(self, outputs, labels):
            return F.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())

        def training_step(self, batch, batch_idx):
            return self.loss(self(batch[0]), batch[1])

    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 1))
    fit(Binary(net), LayerCushion(), callbacks.NoiseStability(), data=loader(images(classes=2)), folder=tmp_path)
    log = RunFolder(tmp_path).log().set_index(["epoch", "name"])["value"]
    assert log[2, "probe/risk"] > 0 and (2, "probe/error") not in log.index and log[2, "noise/response_0.1"] > 0


def test_compiled_parts_are_measured_as_they_are_without(tmp_path):
    logs = []
    for compiled in (False, True):
        module = Foreign()
        if compiled:
            module.again = torch.compile(module.again, backend="eager")
        fit(module, LayerCushion(), HessianSpectrum(), folder=tmp_path / str(compiled), epochs=1)
        log = RunFolder(tmp_path / str(compiled)).log()
        logs.append(log[~log["name"].str.startswith(("cost", "time"))].set_index(["epoch", "name"])["value"])
    assert logs[0].equals(logs[1]) and not logs[0].index.get_level_values("name").str.startswith("failed").any()


def test_a_module_within_one_that_calls_it_in_parts():
    class Outer(Wrapping):
        def forward(self, x):
            return self.network.network(x)

    class Inner(Wrapping):
        forward = pl.LightningModule.forward

    outer = Outer(Inner(nn.Sequential(nn.Flatten(), nn.Linear(36, 3))))
    assert members_of(outer)[0].net is outer


def test_attributes_that_mean_something_else_than_ours(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block_list = nn.ModuleList([nn.Linear(36, 8), nn.Linear(8, 3)])

        def layers(self):
            return [*self.block_list]

        def forward(self, x):
            x = x.flatten(1)
            for layer in self.block_list:
                x = layer(x)
            return x

    fit(Wrapping(Net()), LayerCushion(), callbacks.Signal(), callbacks.InterlayerCushion(), folder=tmp_path, epochs=1)
    names = set(RunFolder(tmp_path).log()["name"])
    assert {"cushion/layer02/median", "signal/layer02/activation"} <= names and "failed/signal" not in names


def test_a_list_is_a_dataset_too():
    made = fit(Foreign(), WeightMass(), data=DataLoader([images()[row] for row in range(32)], batch_size=16), epochs=1)
    first, again = (torch.cat([x for x, _ in probe_of(made)]) for _ in range(2))
    assert torch.equal(first, images()[:32][0]) and torch.equal(again, first)


def test_a_probe_loader_comes_first():
    class Answering(Foreign):
        def probe_loader(self):
            return [(torch.zeros(2, 1, 6, 6), torch.zeros(2, dtype=torch.long))]

    made = fit(Answering(), epochs=1)
    assert [len(labels) for _, labels in probe_of(made)] == [2]


class Endless(IterableDataset):
    def __iter__(self):
        return iter([images()[row] for row in range(32)])


def test_a_training_set_without_numbers_needs_a_probe_loader():
    match = "read by index, but the training data, a DataLoader, has none: give the datamodule"
    with pytest.raises(UserError, match=match):
        fit(Foreign(), LayerCushion(), data=DataLoader(Endless(), batch_size=16))


def test_layers_without_cushions_are_named_once(caplog, tmp_path):
    class Passed(Foreign):
        def forward(self, x):
            return self.fc(F.relu(self.conv(x)).mean((2, 3)))

    with caplog.at_level(logging.WARNING, logger="callbacks"):
        fit(Passed(), LayerCushion(), folder=tmp_path)
    messages = [record.message for record in caplog.records if "no cushion of" in record.message]
    assert messages == [f"no cushion of again: {NEVER_CALLED}"]
    rows = {row.path: (row.layer, row.reason) for row in RunFolder(tmp_path).layers()}
    assert rows["again"] == ("layer02", messages[0].partition("again: ")[2]) and rows["conv"] == ("layer01", "")
    log = RunFolder(tmp_path).log()
    assert (
        not log["name"].str.startswith("cushion/layer02").any() and log["name"].str.startswith("cushion/layer03").any()
    )


def test_training_metrics_need_a_module_with_metrics():
    with pytest.raises(
        UserError, match=r"TrainingMetrics needs pl_module\.metrics\(\), but Foreign has no such method"
    ):
        fit(Foreign(), TrainingMetrics())


def test_attention_can_be_measured(tmp_path):
    from torchvision.models import VisionTransformer

    net = VisionTransformer(6, 3, 2, 2, 8, 16, num_classes=3)
    nn.init.normal_(net.heads.head.weight)
    net.conv_proj = nn.Conv2d(1, 8, 3, 3)
    measures = (HessianSpectrum(), callbacks.InterlayerCushion(), callbacks.NoiseStability())
    fit(Wrapping(net), *measures, folder=tmp_path, epochs=1)
    names = set(RunFolder(tmp_path).log()["name"])
    assert {"hessian/top1", "interlayer/encoder.layers.encoder_layer_0/median", "noise/response_0.1"} <= names
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_rank_s_own_nets_may_be_pairs_like_members():
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    module = SimpleNamespace(members=[("one", one), ("two", two)], own=[("two", two)])
    assert [name for name, *_ in trained_here(module)] == ["two"]
    assert owner_of(module, "one") == 0


class Late(Wrapping):
    """Its net is made in `setup`, where callbacks come first; it keeps its losses until the epoch's end."""

    def __init__(self) -> None:
        pl.LightningModule.__init__(self)
        self.losses: list[torch.Tensor] = []

    def setup(self, stage):
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.ReLU(), nn.Linear(4, 3))

    def training_step(self, batch, batch_idx):
        self.losses.append(super().training_step(batch, batch_idx))
        return self.losses[-1]

    def on_train_epoch_end(self):
        self.losses.clear()


class LateItself(Late):
    """As a module of which the net is itself."""

    def setup(self, stage):
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(36, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(F.relu(self.first(x.flatten(1))))


@pytest.mark.parametrize("make", [Late, LateItself])
def test_nets_that_are_made_in_setup_and_keep_their_losses(tmp_path, make):
    fit(make(), *(measure() for measure in MEASURES), folder=tmp_path, epochs=1)
    log = RunFolder(tmp_path).log()
    assert not log["name"].str.startswith("failed/").any()
    assert {"cushion", "hessian", "drive", "signal"} <= {name.split("/")[0] for name in log[log["epoch"] == 1]["name"]}


def test_copies_of_a_module_know_its_epoch_and_share_its_data(tmp_path):
    """A net may change with the epochs, and a module may keep its data, which need not be copied for each measurement."""

    class Kept(TensorDataset):
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    class Growing(LateItself):
        def __init__(self):
            super().__init__()
            self.train_set = Kept(*images().tensors)

        def forward(self, x):
            return super().forward(x) * (1 + self.current_epoch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

        def on_train_epoch_end(self):
            super().on_train_epoch_end()
            x, y = self.train_set[:]
            risks.append(F.cross_entropy(self(x), y).item())

    risks: list[float] = []
    module = Growing()
    fit(module, LayerCushion(), HessianSpectrum(samples=8), folder=tmp_path, data=loader(module.train_set))
    found = RunFolder(tmp_path).log().query("name == 'probe/risk' and epoch > 0")["value"].tolist()
    assert found == pytest.approx(risks, rel=1e-5) and risks[0] != risks[1]


def test_a_running_metric_is_no_loss():
    module = Foreign()
    module.loss = MeanMetric()
    module.loss(0.7)
    assert loss_of(module) is cross_entropy and float(module.loss.compute()) == pytest.approx(0.7)


def test_inputs_are_as_wide_as_weights_and_not_as_tables_of_indices():
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    net.register_parameter("table", nn.Parameter(torch.arange(3), requires_grad=False))
    assert next(net.parameters()).dtype == torch.int64
    found = LayerCushion().evaluate(MeasureContext(net, [images()[:]]))
    assert (
        found["probe/risk"] == LayerCushion().evaluate(MeasureContext(nn.Sequential(*net), [images()[:]]))["probe/risk"]
    )


def test_a_normalisation_that_takes_no_single_sample():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    context = MeasureContext(nn.Sequential(nn.Flatten(), nn.Linear(36, 4), norm, nn.Linear(4, 3)), [images()[:]])
    assert {"cushion/layer01", "cushion/layer02"} <= LayerCushion().evaluate(context).keys()
    assert callbacks.BnLambda().evaluate(context)["bn_lambda/layer01"].absorbable == 0


def test_complex_weights_are_refused_and_not_measured_by_their_real_parts():
    context = MeasureContext(nn.Sequential(nn.Linear(36, 3, dtype=torch.complex64)), [images()[:]])
    nn.init.constant_(context.net[0].weight, 3j)
    with pytest.raises(UserError, match=r"expected real weights, but those of 0\.weight are torch.complex64"):
        WeightMass().evaluate(context)
    assert weight_norm([context.net[0].weight]) == pytest.approx(3 * 108**0.5, rel=1e-6)


class Adversaries(Foreign):
    """Two optimizers that take turns within a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = (nn.Sequential(nn.Flatten(), nn.Linear(36, 3)) for _ in range(2))

    @property
    def members(self):
        return [("one", self.one), ("other", self.other)]

    def training_step(self, batch, batch_idx):
        for net, optimizer in zip((self.one, self.other), self.optimizers()):
            loss = F.cross_entropy(net(batch[0]), batch[1])
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.one, self.other)]


def test_a_clock_of_steps_where_two_optimizers_take_turns(tmp_path):
    """Each batch makes two steps: of every five of them the next even number is measured, by watched passes too."""
    clock = {"every_n_steps": 5, "every_n_epochs": 9}
    fit(Adversaries(), callbacks.Signal(**clock), WeightMass(**clock), folder=tmp_path, epochs=2)  # of six batches
    log = RunFolder(tmp_path).log()
    for name in ("weight_mass/all", "signal/layer01/activation", "signal/layer01/weight_gradient"):
        for member in ("one", "other"):
            steps = log[(log["name"] == name) & (log["member"] == member)]["step"].tolist()
            assert steps == [0, 6, 10, 16, 20, 24], (name, member)
