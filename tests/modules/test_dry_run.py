"""Memory format by default: where every net takes it, and the same numbers either way."""

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_app.common.errors import UserError
from lightning_app.modules import Arm
from lightning_app.modules.dry_run import check_outputs, choose_memory_format
from lightning_app.modules.members import Member, build_members
from lightning_app.networks import ResidualMLP
from tests.helpers import arm, classifier, digits, fit, trainer


class Flattening(nn.Module):
    """As many public nets end: `view` wants the map contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 32 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv(x).view(-1, 4 * 32 * 32))


class FiveDimensions(nn.Module):
    """As capsule nets have them: no memory format of theirs is channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(3600, 10)
        self.scale = nn.Parameter(torch.ones(1, 1, 1, 1, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv(x).flatten(1)) * self.scale.flatten()


class Constant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), 10)


class Frozen(Flattening):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


@pytest.mark.parametrize("net", [Constant, Frozen])
def test_a_net_without_weights_to_train_is_an_error_message(net):
    with pytest.raises(UserError, match=r"member 'net' has no weights to train: .* use `measure`"):
        fit(classifier({"net": Arm(net=net)}))


class Merging(nn.Module):
    """A convolution for each sample, as one of many groups: `view` wants samples and channels to lie in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        merged = x.view(1, -1, 30, 30)
        return self.fc(merged.view(len(x), 4, 900).mean(2))


class NormBeforeTheSum(nn.Module):
    """x + relu(norm(W x)): its layer has no W x + S x, though it says so."""

    def __init__(self, residual: bool = True) -> None:
        super().__init__()
        self.residual = residual
        self.conv, self.norm, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.GroupNorm(1, 3), nn.Linear(3, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        return self.fc((x + y if self.residual else y).mean((2, 3)))

    def id_weights(self) -> tuple[str, ...]:
        return ("conv.weight",)

    def counterpart(self) -> "NormBeforeTheSum":
        other = NormBeforeTheSum(not self.residual)
        other.load_state_dict(self.state_dict())
        return other


class Asserting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous()
        return self.fc(x.flatten(1))


class Seen(nn.Sequential):
    """Notes how the images lay that it was given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.is_contiguous(memory_format=torch.channels_last)
        return super().forward(x)


def simple() -> nn.Module:
    return Seen(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 10))


def channels_last(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("asked, found", [(None, True), (True, True), (False, False)])
def test_weights_and_images_lie_as_asked_and_by_default_channels_last(asked, found):
    module = fit(classifier({"net": Arm(net=simple)}, channels_last=asked), epochs=1, limit_train_batches=1)
    net = module.members[0].net
    assert (module.plan.channels_last, channels_last(net[0].weight), net.last) == (found, found, found)


@pytest.mark.parametrize("kind", [Merging, Asserting, FiveDimensions])
def test_a_net_that_cannot_take_it_stays_contiguous(kind):
    module = fit(classifier({"net": Arm(net=kind)}), epochs=1, limit_train_batches=1)
    assert not module.plan.channels_last
    assert not any(channels_last(w) for w in module.members[0].net.parameters() if w.ndim == 4)


def test_a_net_that_flattens_by_view_keeps_the_whole_bank_contiguous():
    module = fit(classifier({"view": Arm(net=Flattening), "other": Arm(net=simple)}), epochs=1, limit_train_batches=1)
    assert not module.plan.channels_last
    assert not any(
        channels_last(net.get_parameter(w)) for w, (_, net) in zip(("conv.weight", "0.weight"), module.members)
    )


def test_where_it_was_asked_for_such_a_net_is_an_error():
    for model, data in (({"channels_last": True}, {}), ({}, {"channels_last": True})):
        with pytest.raises(UserError, match=r"member 'net' cannot take images in channels_last .* x\.flatten\(1\)"):
            fit(classifier({"net": Arm(net=Flattening)}, **model), epochs=1, data=digits(**data))


def test_a_net_of_other_inputs_than_the_data_says_what_to_set():
    def member(net: nn.Module) -> list[Member]:
        return [Member("net", "net", 0, net)]

    with pytest.raises(UserError, match="`inputs` of ResidualMLP, here 50, to 13"):
        check_outputs(member(ResidualMLP(inputs=50)), (13,), 10)
    with pytest.raises(UserError, match=r"^(?!.*set the net).*shape \(13,\) and return logits"):
        check_outputs(member(nn.Sequential(nn.Linear(13, 4), nn.Flatten(5))), (13,), 10)


def test_asked_for_vectors_it_is_an_error():
    member = Member("net", "net", 0, nn.Linear(7, 2))
    with pytest.raises(UserError, match=r"a memory format for images .* shape \(7,\): leave channels_last out"):
        choose_memory_format([member], (7,), True, torch.device("cpu"))


def test_images_lie_anew_for_a_model_that_wants_them_otherwise():
    data = digits()
    for net, found in ((simple, True), (Flattening, False), (simple, True)):
        module = fit(classifier({"net": Arm(net=net)}), epochs=1, data=data, limit_train_batches=1)
        assert (module.plan.channels_last, data.probe_loader().source.channels_last) == (found, found)


@pytest.mark.parametrize(
    "shape, device, found",
    [((3, 32, 32), "cpu", True), ((3, 32, 32), "cuda", False), ((7,), "cpu", False), (None, "cpu", False)],
)
def test_by_default_it_is_for_images_on_a_cpu(shape, device, found):
    """Before Lightning has moved the nets, which are on the CPU until then."""
    assert choose_memory_format([Member("net", "net", 0, simple())], shape, None, torch.device(device)) is found


def test_the_look_leaves_no_trace():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(3600, 10))
    net[1].eval()
    before, state = {key: value.clone() for key, value in net.state_dict().items()}, torch.get_rng_state()
    members = [Member("net", "net", 0, net)]
    check_outputs(members, (3, 32, 32), 10)
    choose_memory_format(members, (3, 32, 32), None, torch.device("cpu"))
    assert [part.training for part in net] == [True, False, True, True, True]
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("size", [7, 50])
def test_evaluation_is_the_same_in_batches_of_any_size_and_memory_format(size, channels_last):
    """Sums are in float64 over batches, in float32 within one: some roundings of 6e-8."""

    def evaluated(size: int, channels_last: bool) -> dict[str, float]:
        torch.manual_seed(0)
        data = digits(test_limit=100, eval_batch_size=size)
        module = classifier({"net": arm(True)}, channels_last=channels_last)
        trainer().validate(module, datamodule=data, verbose=False)
        return module.metrics()["net"]

    one, other = evaluated(100, False), evaluated(size, channels_last)
    assert one["test/error"] == other["test/error"]
    assert one["test/risk"] == pytest.approx(other["test/risk"], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_twin_that_is_another_function_is_refused(dtype):
    arms = {"residual": Arm(net=NormBeforeTheSum), "plain": Arm(twin_of="residual")}
    members = build_members(arms, (0,))
    for _, net in members:
        net.to(dtype)
    with pytest.raises(
        UserError, match=r"'plain' is not a twin of 'residual': .* outputs .of up to .*. differ by up to .*T adds 1"
    ):
        check_outputs(members, (3, 32, 32), 10)


def test_a_trained_twin_is_one_still():
    """What is checked is T, not what training has made of the two."""
    members = build_members({"residual": arm(True, depth=44), "plain": Arm(twin_of="residual")}, (0,))
    with torch.no_grad():
        for weight in members[1].net.parameters():
            weight.mul_(1.1)
    check_outputs(members, (3, 32, 32), 10)


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))


def test_what_lazy_layers_make_is_a_function_of_the_seed():
    class First(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            self.weights = [net[1].weight.detach().clone() for _, net in pl_module.members]

    found = []
    for seeds in ([0, 1], [1]):
        torch.rand(len(seeds))  # the state of the process says nothing
        fit(classifier({"net": Arm(net=lazy)}, seeds=seeds, ema_decay=0.9), 1, callbacks=[first := First()])
        found.append(first.weights)
    (zero, one), (alone,) = found
    assert torch.equal(one, alone) and not torch.equal(zero, one)


def test_what_lazy_layers_make_is_independent_of_the_layers_before():
    """Drawn from the seed a second time, it was the first layer's weights."""
    (member,) = build_members(
        {"net": Arm(net=lambda: nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.LazyLinear(20)))}, (0,)
    )
    check_outputs([member], (30,), 20)
    both = torch.stack([member.net[at].weight.detach().flatten()[:400] for at in (0, 2)])
    assert abs(torch.corrcoef(both)[0, 1]) < 0.3


def test_lazy_layers_need_to_know_a_sample():
    data = DataLoader(TensorDataset(torch.randn(8, 5), torch.arange(8)), 4)
    with pytest.raises(
        UserError, match=r"member 'net' has lazy layers, .* the attributes sample_shape and num_classes"
    ):
        trainer(1).fit(classifier(net=lazy), data, data)
