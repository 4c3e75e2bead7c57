"""What a configuration could make a command do: call anything, write anywhere."""

import subprocess
import sys
from pathlib import Path

import pytest
import torchvision
from jsonargparse import Namespace
from torch import nn

from lightning_app.cli.borrowed import check_borrowed
from lightning_app.cli.confined import confined
from lightning_app.cli.yaml_limits import check_configs
from lightning_app.common.errors import UserError
from lightning_app.modules import Arm
from lightning_app.modules.members import build_members
from tests.hostile.damage import CONFIG


@pytest.mark.parametrize(
    "spec",
    [
        Namespace(class_path="subprocess.call", dict_kwargs={"args": ["touch", "executed"]}),
        Namespace(class_path="torch.hub.load", init_args=Namespace(repo_or_dir="x", model="y")),
        Namespace(class_path="torch.load", init_args=Namespace(f="x", weights_only=False)),
        Namespace(class_path="subprocess.Popen", init_args=Namespace(args="touch executed")),
        Namespace(class_path="builtins.exec"),
        subprocess.call,
        sys.exit,
        "os.system",
        Namespace(class_path="SimplifiedNet", init_args=Namespace(norm_layer="os._exit")),
        Namespace(class_path="torch.nn.Identity", init_args=Namespace(nested=[{"x": "builtins.eval"}])),
        Namespace(
            class_path="torch.fx.graph_module.reduce_graph_module", dict_kwargs={"body": {}, "import_block": "x"}
        ),
        Namespace(class_path="torch.fx.GraphModule", init_args=Namespace(root={}, graph=None)),
        Namespace(class_path="tarfile.TarFile.open", dict_kwargs={"name": "executed", "mode": "w"}),
    ],
    ids=range(13),
)
def test_a_borrowed_configuration_that_would_call_anything(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="it may do anything"):
        check_borrowed({"model": Namespace(net=None, arms={"a": Namespace(net=spec)})})
    assert not [*tmp_path.iterdir()]


def test_a_borrowed_name_of_nothing_is_refused():
    with pytest.raises(UserError, match=r"names tarfile\.TarFile\.nothing, and there is no such"):
        check_borrowed({"model": Namespace(net=Namespace(class_path="tarfile.TarFile.nothing"))})


def test_a_borrowed_configuration_of_nets_and_data():
    net = Namespace(class_path="torchvision.models.resnet18", init_args=Namespace(norm_layer="torch.nn.BatchNorm2d"))
    data = Namespace(
        class_path="lightning_app.datamodules.ImageFolder", init_args=Namespace(root="data.v2", mean=[0.5])
    )
    optimizer = Namespace(class_path="torch.optim.SGD", init_args=Namespace(lr=0.1))
    scheduler = Namespace(class_path="torch.optim.lr_scheduler.StepLR", init_args=Namespace(step_size=1))
    check_borrowed({"model": Namespace(net=net, optimizer=optimizer, scheduler=scheduler), "data": data})
    check_borrowed({"model": Namespace(net=torchvision.models.resnet18)})


# -- places

OUT = ("/tmp/x", "../x", "a/../../x", "~/x", "~root/x", "s3://bucket/x", "file:/tmp/x", "FILE:///tmp/x")


@pytest.mark.parametrize("place", OUT)
@pytest.mark.parametrize("name", ["save_dir", "dirpath", "filename", "name", "version", "tracking_uri"])
def test_a_path_that_leads_out(place, name):
    trainer = Namespace(logger=[Namespace(class_path="CSVLogger", init_args=Namespace(**{name: place}))])
    with pytest.raises(UserError, match=rf"trainer\.logger\.init_args\.{name}: .* would lead out of the run folder"):
        confined(trainer, Path("run"))


@pytest.mark.parametrize("name", ["save_dir", "dirpath", "root_dir", "dir", "default_root_dir", "output_file", "path"])
def test_a_relative_path_lies_in_the_run_folder(name):
    trainer = Namespace(
        callbacks=[Namespace(class_path="a.B", init_args=Namespace(**{name: "x/y"}, filename="{epoch}..x"))]
    )
    (made,) = confined(trainer, Path("run")).callbacks
    assert made == Namespace(class_path="a.B", init_args=Namespace(**{name: "run/x/y"}, filename="{epoch}..x"))
    assert trainer.callbacks[0].init_args[name] == "x/y"


def test_what_is_no_place_stays():
    kept = Namespace(
        max_epochs=3, logger=False, dirpath=None, tags=["a/b"], base_url="https://example.org/a", profiler="simple"
    )
    assert confined(kept, Path("run")) == kept


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "a\nb", "a b", "..", "a" * 5 + "\0"])
def test_arms_names_are_words(name):
    with pytest.raises(UserError, match="letters, digits and '_' only"):
        build_members({name: Arm(net=lambda: nn.Linear(1, 1))}, (0,))


# -- files of configurations


def test_configuration_files_are_looked_at_first(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(CONFIG)
    check_configs([str(file)])
    for content in (b"[" * 200_000, b"a: \xff\xfe", b"a: 1\na: 2\n", b"#" * (5 << 20)):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.yaml"):
            check_configs([str(file)])
    with pytest.raises(UserError, match="found a folder"):
        check_configs([str(tmp_path)])
