"""Weights from anybody's file: read without executing it, all of them, and nothing else."""

import pytest
import torch
from torch import nn

from lightning_app.cli.weights import load_weights, read_weights
from lightning_app.common.errors import UserError
from tests.helpers import same_weights


def net(classes: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, classes))


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "nets.net.", "model.backbone."])
@pytest.mark.parametrize("nest", [None, "state_dict", "model"])
def test_files_of_many_programs(tmp_path, prefix, nest):
    source, target = net(seed=1), net(seed=2)
    state = {prefix + name: value for name, value in source.state_dict().items()}
    torch.save({nest: state, "epoch": 3} if nest else state, tmp_path / "weights.pth")
    load_weights(target, tmp_path / "weights.pth")
    assert same_weights(source, target)


def test_safetensors(tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    source, target = net(seed=1), net(seed=2)
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    load_weights(target, tmp_path / "weights.safetensors")
    assert same_weights(source, target)
    (tmp_path / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"not a complete \.safetensors file"):
        read_weights(tmp_path / "weights.safetensors")


class Tied(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.between, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("left_out", ["head.weight", "embedding.weight"])
def test_a_tied_weight_needs_one_of_its_names(tmp_path, prefix, left_out):
    source, target = Tied(1), Tied(2)
    state = {prefix + name: value for name, value in source.state_dict().items() if name != left_out}
    torch.save(state, tmp_path / "tied.pth")
    load_weights(target, tmp_path / "tied.pth")
    assert same_weights(source, target) and target.head.weight is target.embedding.weight
    torch.save({name: value for name, value in state.items() if "between" in name}, tmp_path / "part.pth")
    with pytest.raises(UserError, match=r"2 missing \(embedding.weight, head.weight\)"):
        load_weights(target, tmp_path / "part.pth")


def test_a_net_of_tied_weights_alone(tmp_path):
    source, target = (Tied(seed) for seed in (1, 2))
    del source.between, target.between
    torch.save({f"module.{name}": value for name, value in source.state_dict().items()}, tmp_path / "tied.pth")
    load_weights(target, tmp_path / "tied.pth")
    assert same_weights(source, target)


def test_lazy_layers_have_the_sizes_of_the_file(tmp_path):
    source = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    target = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3))
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    load_weights(target, tmp_path / "weights.pth")
    images = torch.randn(2, 1, 4, 4)
    assert torch.equal(source.eval()(images), target.eval()(images)) and same_weights(source, target)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_file_without_counters_of_batches_is_whole(tmp_path, prefix):
    source, target = net(seed=1), net(seed=2)
    torch.save({prefix + k: v for k, v in source.state_dict().items() if "tracked" not in k}, tmp_path / "old.pth")
    load_weights(target, tmp_path / "old.pth")
    assert same_weights(source, target)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            net(classes=5).state_dict(),
            r"3.weight is \(5, 4\) in .* and \(3, 4\) in this Sequential: .* number of classes",
        ),
        (
            nn.Linear(2, 2).state_dict(),
            r"another net than this Sequential: 8 missing \(0.bias, .*\), 2 too many \(bias, weight\)",
        ),
        ({"epoch": 3}, "holds no weights by name"),
        (torch.zeros(3), "holds a Tensor, expected a state dict"),
        (net(), "such as a pickled net, which is never executed"),
    ],
)
def test_a_file_of_something_else_is_an_error_message(tmp_path, content, message):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(UserError, match=message):
        load_weights(net(), tmp_path / "weights.pth")


def test_of_several_nets_in_a_file_none_is_guessed(tmp_path):
    both = {f"{part}.{name}": value for part in ("teacher", "student") for name, value in net().state_dict().items()}
    torch.save(both, tmp_path / "both.pth")
    with pytest.raises(
        UserError, match=r"file has 2 such nets, with the prefixes 'student\.', 'teacher\.': save the one"
    ):
        load_weights(net(), tmp_path / "both.pth")
    state = net().state_dict()
    torch.save({**state, **{f"ema.{name}": value for name, value in state.items()}}, tmp_path / "copy.pth")
    with pytest.raises(UserError, match=r"with the prefixes '', 'ema\.': save the one"):
        load_weights(net(), tmp_path / "copy.pth")


def test_a_run_that_keeps_averages_has_its_own_weights_taken(tmp_path):
    source, target, average = net(seed=1), net(seed=2), net(seed=3)
    state = {f"averages.net.module.{name}": value for name, value in average.state_dict().items()}
    torch.save(
        {"state_dict": state | {f"nets.net.{name}": v for name, v in source.state_dict().items()}}, tmp_path / "l.ckpt"
    )
    load_weights(target, tmp_path / "l.ckpt")
    assert same_weights(source, target)


def test_missing_and_torn_files(tmp_path):
    with pytest.raises(UserError, match=r"found no such file"):
        read_weights(tmp_path / "none.pth")
    torch.save(net().state_dict(), tmp_path / "whole.pth")
    (tmp_path / "torn.pth").write_bytes((tmp_path / "whole.pth").read_bytes()[:500])
    with pytest.raises(UserError, match="it is truncated"):
        read_weights(tmp_path / "torn.pth")
