"""What a configuration could make a command do, and where what it names writes."""

import subprocess
from pathlib import Path

import pytest
import torchvision
from jsonargparse import Namespace
from torch import nn

from lightning_app.cli.parser import prescan
from lightning_app.cli.safety import check_allowed, placed
from lightning_app.common.errors import UserError
from lightning_app.modules import Arm
from lightning_app.modules.members import build_members
from tests.hostile.damage import CONFIG


def spec(path: str, **arguments) -> Namespace:
    return Namespace(class_path=path, init_args=Namespace(**arguments))


CALLS = {
    "function": Namespace(class_path="subprocess.call", dict_kwargs={"args": ["touch", "executed"]}),
    "function that returns a net": spec("torch.hub.load", repo_or_dir="x", model="y"),
    "pickle": spec("torch.load", f="x", weights_only=False),
    "class": spec("subprocess.Popen", args="touch executed"),
    "imported function": subprocess.call,
    "text": "os.system",
    "argument": spec("SimplifiedNet", norm_layer="os._exit"),
    "nested": spec("torch.nn.Identity", nested=[{"x": "builtins.eval"}]),
    "source text": Namespace(class_path="torch.fx.graph_module.reduce_graph_module", dict_kwargs={"body": {}}),
    "net of source text": spec("torch.fx.GraphModule", root={}, graph=None),
    "method": Namespace(class_path="tarfile.TarFile.open", dict_kwargs={"name": "executed", "mode": "w"}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_checkpoints_own_configuration_may_not_name(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="could do anything"):
        check_allowed({"model": Namespace(net=None, arms={"a": Namespace(net=call)})})
    assert not [*tmp_path.iterdir()]


def test_a_name_of_nothing_is_refused():
    with pytest.raises(UserError, match=r"names tarfile\.TarFile\.nothing, and there is no such"):
        check_allowed({"model": Namespace(net=Namespace(class_path="tarfile.TarFile.nothing"))})


def test_a_class_path_that_is_no_text_is_left_to_the_parser():
    check_allowed({"model": Namespace(net=Namespace(class_path=None))})


def test_nets_data_optimizers_and_schedules_are_allowed():
    net = spec("torchvision.models.resnet18", norm_layer="torch.nn.BatchNorm2d")
    data = spec("lightning_app.datamodules.ImageFolder", root="data.v2", mean=[0.5])
    optimizer, scheduler = spec("torch.optim.SGD", lr=0.1), spec("torch.optim.lr_scheduler.StepLR", step_size=1)
    check_allowed({"model": Namespace(net=net, optimizer=optimizer, scheduler=scheduler), "data": data})
    check_allowed({"model": Namespace(net=torchvision.models.resnet18)})


@pytest.mark.parametrize("place", ["/tmp/x", "~/x", "~root/x", "s3://bucket/x", "file:/tmp/x", "FILE:///tmp/x"])
def test_a_place_elsewhere_is_the_user_s(place):
    trainer = Namespace(logger=[Namespace(class_path="CSVLogger", init_args=Namespace(save_dir=place))])
    assert placed(trainer, Path("run")) == trainer


@pytest.mark.parametrize("name", ["save_dir", "dirpath", "root_dir", "dir", "default_root_dir", "output_file", "path"])
def test_a_relative_path_lies_in_the_run_folder(name):
    trainer = Namespace(
        callbacks=[Namespace(class_path="a.B", init_args=Namespace(**{name: "x/y"}, filename="{epoch}..x"))]
    )
    (made,) = placed(trainer, Path("run")).callbacks
    assert made == Namespace(class_path="a.B", init_args=Namespace(**{name: "run/x/y"}, filename="{epoch}..x"))
    assert trainer.callbacks[0].init_args[name] == "x/y"


def test_what_is_no_place_stays():
    kept = Namespace(
        max_epochs=3, logger=False, dirpath=None, tags=["a/b"], base_url="https://example.org/a", profiler="simple"
    )
    assert placed(kept, Path("run")) == kept


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "a\nb", "a b", "..", "a" * 5 + "\0"])
def test_arms_names_are_words(name):
    with pytest.raises(UserError, match="letters, digits and '_' only"):
        build_members({name: Arm(net=lambda: nn.Linear(1, 1))}, (0,))


def test_configuration_files_are_looked_at_first(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(CONFIG)
    prescan(["fit", "--config", str(file)])
    for content in (b"a: \xff\xfe", b"a: 1\na: 2\n"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.yaml"):
            prescan(["fit", "--config", str(file)])
    with pytest.raises(UserError, match="found a folder"):
        prescan(["fit", "--config", str(tmp_path)])
