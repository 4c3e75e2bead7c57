"""The real command line in processes of its own: fit, resume, signals, checkpoints, several ranks, the report."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightning_app.cli import main
from lightning_app.runs import RunFolder
from tests.forked import MAIN, WAIT_AT, Popen
from tests.helpers import LEARNING, OFFLINE, ROOT, TINY, assert_same_run, command, log_rows, refused
from tests.waiting import STEPS_AN_EPOCH, go_on, until_it_waits

pytestmark = pytest.mark.slow
RUN = Path("runs") / "digits" / "quickstart"


def every_epoch() -> list[str]:
    """The option that has all of the quickstart's measures after every epoch, also those that it has at the end only: where
    the end is, is what the runs below differ in."""
    callbacks = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())["trainer"]["callbacks"]
    for each in callbacks:
        if "every_n_epochs" in each.get("init_args", {}):
            each["init_args"]["every_n_epochs"] = 1
    return ["--trainer.callbacks", json.dumps(callbacks)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder in which a tiny quickstart of three epochs ran, uninterrupted."""
    cwd = tmp_path_factory.mktemp("finished")
    done = command(*TINY, *every_epoch(), "--trainer.max_epochs", "3", cwd=cwd, env=OFFLINE, page=True)
    assert done.returncode == 0, done.stderr
    (cwd / "stdout").write_text(done.stdout)
    return cwd


def test_fit_says_the_few_numbers_that_matter_and_where_the_report_is(finished):
    said = (finished / "stdout").read_text()
    assert "wandb sync runs/digits/quickstart/wandb/offline-run-" in said
    assert (finished / re.search(r"report: (\S+)", said)[1]).stat().st_size > 10_000
    last = RunFolder(finished / RUN).log().query("member == 'residual' and epoch == 3").set_index("name")["value"]
    line = next(line for line in said.splitlines() if line.startswith("residual"))
    assert f"{last['test/error']:.4f}" in line


def test_the_run_folder_holds_everything(finished):
    names = {path.name for path in (finished / RUN).iterdir()}
    assert {"config.yaml", "log.csv", "measurements", "checkpoints", "wandb", "report.html", "id"} <= names
    config = yaml.safe_load((finished / RUN / "config.yaml").read_text())
    assert config["model"]["arms"]["plain"]["net"]["init_args"]["depth"] == 5
    assert config["trainer"]["max_epochs"] == 3
    assert not list(finished.rglob("*.tmp"))
    assert sorted(path.name for path in finished.iterdir()) == ["runs", "stdout"]  # nothing is strewn about
    named = [path.name for path in finished.rglob("*")]
    assert not [name for name in named if re.search(r'[<>:"\\|?*]|[ .]$', name)]  # which Windows refuses


def test_a_run_stopped_at_an_epochs_end_and_resumed_is_the_same_run(finished, tmp_path):
    words = (*TINY, *every_epoch(), "--ckpt_path", "last", "--trainer.max_epochs")
    first, config = command(*words, "2", cwd=tmp_path), tmp_path / RUN / "config.yaml"
    config.write_bytes(config.read_bytes() + b"\xff")  # damaged: it is kept as it is
    resumed = command(*words, "3", cwd=tmp_path)
    assert first.returncode == resumed.returncode == 0, first.stderr + resumed.stderr
    assert "no checkpoint yet" in first.stdout and "no checkpoint yet" not in resumed.stdout
    assert [path.name for path in (tmp_path / "runs" / "digits").iterdir()] == ["quickstart"]
    assert_same_run(finished / RUN, tmp_path / RUN)
    assert log_rows(finished / RUN) == log_rows(tmp_path / RUN)
    assert (tmp_path / RUN / "config.before-resume-1.yaml").read_bytes().endswith(b"\xff")


def stop(cwd: Path, step: int, which: signal.Signals, *words: str) -> subprocess.Popen:
    """Start a run, send it a signal after so many steps, wait for its end."""
    environment = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1", WAIT_AT: str(step)}
    call = [sys.executable, "-u", MAIN, *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = Popen(call, cwd=cwd, env=environment, **streams)
    until_it_waits(process, cwd)
    process.send_signal(which)
    go_on(cwd)
    process.said = process.stdout.read()
    process.wait(120)
    return process


LONG = ("--trainer.max_epochs", "4", "--data.batch_size", "2", *LEARNING, "--trainer.callbacks+=LayerCushion")


def test_a_run_stopped_by_a_signal_resumes_to_the_same_end(tmp_path):
    """Killed, it does so too: tests/runs/test_wandb_online.py, and the run of transformers below."""
    whole = command(*TINY, *LONG, "--run.root", "whole", cwd=tmp_path)
    stopped = stop(tmp_path, 2 * STEPS_AN_EPOCH + 5, signal.SIGTERM, *TINY, *LONG)
    assert stopped.returncode == 143, stopped.said
    assert (tmp_path / RUN / "checkpoints" / "last.ckpt").exists()
    resumed = command(*TINY, *LONG, "--ckpt_path", "last", cwd=tmp_path)
    assert whole.returncode == resumed.returncode == 0, whole.stderr + resumed.stderr
    assert_same_run(tmp_path / "whole" / "digits" / "quickstart", tmp_path / RUN)


def test_a_killed_run_of_transformers_on_tokens_resumes_to_the_same_end(tmp_path):
    config = str(ROOT / "configs" / "gpt_khop.yaml")
    few = ("samples", "64"), ("test_samples", "20"), ("probe_size", "20"), ("batch_size", "8")
    words = ["fit", "--config", config, *(word for name, value in few for word in (f"--data.{name}", value))]
    words += ["--trainer.max_epochs", "3", "--trainer.logger", "[]"]
    words += ["--trainer.callbacks", "[TrainingMetrics, LayerCushion]"]
    whole = command(*words, "--run.root", "whole", cwd=tmp_path)
    killed = stop(tmp_path, 2 * 8 + 5, signal.SIGKILL, *words)  # within the third epoch
    assert killed.returncode == -9, killed.said
    resumed = command(*words, "--ckpt_path", "last", cwd=tmp_path)
    assert whole.returncode == resumed.returncode == 0, whole.stderr + resumed.stderr
    assert "no checkpoint yet" not in resumed.stdout
    assert_same_run(*(tmp_path / root / "khop" / "gpt_khop" for root in ("whole", "runs")))


def test_the_command_line_wins_over_the_checkpoint(finished, tmp_path):
    checkpoint = finished / RUN / "checkpoints" / "last.ckpt"
    options = ("--trainer.max_epochs", "4", "--model.optimizer.lr", "0.002", "--ckpt_path", str(checkpoint))
    done = command(*TINY, *LEARNING, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = RunFolder(tmp_path / RUN).log()
    assert set(log["epoch"]) == {4}  # another root: a run of its own, from epoch 3 on
    assert log.set_index("name")["value"]["lr"] == 0.002


def test_what_trains_nothing_leaves_the_record_of_a_run_as_it_is(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    run = RunFolder(tmp_path / RUN)

    def record() -> dict[str, bytes]:
        return {name: (run.path / name).read_bytes() for name in ("config.yaml", "made.jsonl", "finished", "log.csv")}

    before = record()
    for code, words in [
        (2, ("--model.arms.plain.net.init_args.width", "8")),  # of another architecture
        (2, ("--data.batch_size", "0")),
        (0, ("--model.optimizer.lr", "0.5")),  # nothing is left to train
        (0, ("--trainer.max_epochs", "2")),
        (2, ("--trainer.fast_dev_run", "true")),  # of an epoch less than it has
    ]:
        done = command(*TINY, *every_epoch(), "--trainer.max_epochs", "3", *words, "--ckpt_path", "last", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert record() == before and not [*run.path.glob("config.before-*")], words
        other = (
            "nothing was trained, so these changed options were not used: model.optimizer.init_args.lr 0.0003 -> 0.5"
        )
        assert (other in done.stdout) == ("--model.optimizer.lr" in words)
    other = ("--run.name", "other", "--ckpt_path", str(run.checkpoints / "last.ckpt"))
    done = command(*TINY, *every_epoch(), "--trainer.max_epochs", "3", *other, cwd=tmp_path)
    assert done.returncode == 0 and not (run.path.parent / "other").exists(), done.stderr
    (run.path / "finished").unlink()  # killed just before
    assert (
        command(*TINY, *every_epoch(), "--trainer.max_epochs", "3", "--ckpt_path", "last", cwd=tmp_path).returncode == 0
    )
    assert run.finished == 3 and len(run.made()) == 1
    words = (*TINY, *every_epoch(), "--trainer.max_epochs", "4", "--ckpt_path")
    assert command(*words, "last", cwd=tmp_path).returncode == 0
    assert run.finished == 4 and [made["after_epoch"] for made in run.made()] == [0, 3]


def test_the_command_test_prints_a_checkpoints_numbers_and_touch_no_run(finished):
    before = (finished / RUN / "log.csv").read_bytes()
    options = [word for word in TINY[1:]]
    done = command("test", *options, "--ckpt_path", "last", "--json", cwd=finished)
    assert done.returncode == 0, done.stderr
    last = RunFolder(finished / RUN).log().query("member == 'plain' and epoch == 3").set_index("name")["value"]
    head, *rows = [line.split() for line in done.stderr.splitlines()[-3:]]
    shown = {row[0]: dict(zip(head, row)) for row in rows}
    assert float(shown["plain"]["test/error"]) == pytest.approx(last["test/error"], abs=1e-6)
    assert json.loads(done.stdout)["nets"]["plain"]["test/error"] == pytest.approx(last["test/error"], rel=1e-12)
    assert (finished / RUN / "log.csv").read_bytes() == before
    assert [path.name for path in (finished / "runs" / "digits").iterdir()] == ["quickstart"]


def test_a_diverging_run_keeps_what_was_logged(tmp_path):
    words = ("--model.optimizer", "torch.optim.SGD", "--model.optimizer.lr", "1e20")
    done = command(*TINY, *LEARNING, *words, cwd=tmp_path)
    assert done.returncode == 2
    expected = r"error: the loss of member '(\w+)' became NaN or infinite in epoch (\d+) .* learning rate 1e\+20"
    said = re.search(expected, done.stderr)
    assert said and "Traceback" not in done.stderr
    assert 0 in set(RunFolder(tmp_path / RUN).log()["epoch"])
    assert RunFolder(tmp_path / RUN).divergence() == (said[1], int(said[2]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trainer.max_epoch", "3"), ("no option 'trainer.max_epoch'", "did you mean trainer.max_epochs")),
        (("--model.learning_rate", "3"), ("no option 'model.learning_rate'", "model.optimizer.lr")),
        (("--seed", "3"), ("no option 'seed'", "model.seeds")),
        (("--model.seeds", "1:6"), ("expected seeds as numbers and ranges like '0-6,9', got '1:6'",)),
        (("--config", "{save_checkpoint: {every_n_steps: 1:30}}"), ("every_n_steps: expected int, got 1:30",)),
        (("--config=",), ("--config: expected a path, got an empty text: is a shell variable",)),
        (("--weights", "x"), ("no option 'weights'", "it goes with measure")),
        (
            ("--model.optimizer.momentum", "0.9"),
            ("no option 'model.optimizer.momentum'", "model.optimizer takes amsgrad"),
        ),
        (("--trainer.callbacks[0].samples", "8"), ("no option 'trainer.callbacks[0].samples'", "give the whole list")),
        (("--model.scheduler", "None"), ("model.scheduler: expected", "got the text None", "write null for no value")),
        (
            ("--trainer.max_epochs", "None"),
            ("trainer.max_epochs: expected", "got the text None", "write null for no value"),
        ),
        (("--trainer.logger", "CSVLoger"), ("trainer.logger: there is no class 'CSVLoger'", "did you mean CSVLogger")),
        (
            ("--trainer.callbacks+=CSVLogger",),
            ("a class of another kind, got CSVLogger", "goes into trainer.logger[N]"),
        ),
        (("--model.arms.plain.net", "CIFAR10"), ("plain.net: expected a class of another kind, got CIFAR10",)),
        (
            ("--model.arms.plain.net", "os.system"),
            ("plain.net: expected a class, or a function annotated", "got os.system"),
        ),
        (
            ("--model.arms.plain.net", "builtins.print"),
            ("plain.net: expected a class, or a function annotated", "got builtins.print"),
        ),
        (("--model.optimizer.lr", "-1"), ("model.optimizer or model.scheduler cannot be made", "-1")),
        (("--model.scheduler", "torch.optim.lr_scheduler.ReduceLROnPlateau"), ("ReduceLROnPlateau",)),
        (("--trainer.strategy", "foo"), ("foo",)),
        (
            ("--trainer.strategy", "ddp_spawn", "--trainer.devices", "2"),
            ("expected auto, seeds or ddp", "got ddp_spawn"),
        ),
        (("--trainer.gradient_clip_val", "1"), ("set model.gradient_clip_val",)),
        (("--trainer.gradient_clip_algorithm", "value"), ("set model.gradient_clip_algorithm",)),
        (("--save_checkpoint.every_n_epochs", "0"), ("every_n_epochs of save_checkpoint must be at least 1, got 0",)),
        (("--trainer.check_val_every_n_epoch", "0"), ("check_val_every_n_epoch of trainer must be at least 1, got 0",)),
        (
            ("--trainer.check_val_every_n_epoch", "-1"),
            ("check_val_every_n_epoch of trainer must be at least 1, got -1",),
        ),
        (("--trainer.val_check_interval", "99"), ("`val_check_interval` (99) must be", "training batches (2)")),
        (
            ("--trainer.val_check_interval", "0"),
            ("val_check_interval: expected a fraction", "got 0", "limit_val_batches to 0"),
        ),
        (
            ("--trainer.min_epochs", "3"),
            ("trainer.min_epochs: expected at most 2, trainer.max_epochs, got 3", "Raise trainer.max_epochs"),
        ),
        (
            ("--trainer.min_steps", "3", "--trainer.max_steps", "2"),
            ("min_steps: expected at most 2, trainer.max_steps, got 3",),
        ),
        (("--trainer.default_root_dir", "x"), ("trainer.default_root_dir is not used: set run.root",)),
        (("--trainer.barebones", "true"), ("trainer.barebones is not supported",)),
        (("--trainer.limit_test_batches", "1"), ("has an effect only in `test`", "set data.test_limit")),
        (("--trainer", "5"), ("trainer: expected options, such as --trainer.max_epochs, got",)),
        (("--data.drop_last", "true", "--data.batch_size", "128"), ("drop_last leaves no batch",)),
        (("--model.weight_decay", "-1"), ("model.weight_decay: expected a number of at least 0",)),
        (("--model.seeds", "2-99999999999999999999"), ("at most 10,000",)),
        (("--data.rot", "x"), ("no option 'data.rot'", "did you mean data.root?")),
        (("--model.sead", "1"), ("no option 'model.sead'", "did you mean model.seeds?")),
        (("--model.in_channels", "1"), ("no option 'model.in_channels'", "or model.net.in_channels?")),
        (("--model.inchannels", "1"), ("no option 'model.inchannels'", "or model.net.in_channels?")),
        (("--model.arm.plain", "x"), ("no option 'model.arm.plain'", "did you mean model.arms.plain?")),
        (
            ("--trainer.callbacks=[{class_path: LayerCushion, init_args: {every: 2}}]",),
            (
                "no option 'trainer.callbacks[0].every'",
                "trainer.callbacks[0].every_n_epochs or trainer.callbacks[0].eve",
            ),
        ),
        (("--model.loss", "hinge"), ("got hinge", "a loss of your own goes into a net")),
        (("--seeds", "3"), ("no option 'seeds'", "did you mean model.seeds?")),
        (
            ("configs/res20.yaml",),
            ("expected options, got 'configs/res20.yaml'", "did you mean --config configs/res20"),
        ),
        (("--train_limit", "3"), ("no option 'train_limit'", "did you mean data.train_limit?")),
        (("--data-root", "x"), ("no option 'data-root'", "did you mean data.root?")),
        (("--batch-size", "5"), ("no option 'batch-size'", "did you mean data.batch_size?")),
        (("--depth", "5"), ("no option 'depth'", "model.arms.NAME.net.depth or model.net.depth?")),
        (("--samples", "5"), ("no option 'samples'", "trainer.callbacks[N].samples")),
        (("--trainer-max-epochs", "5"), ("no option 'trainer-max-epochs'", "did you mean trainer.max_epochs?")),
        (("--ckpt-path", "last"), ("no option 'ckpt-path'", "did you mean ckpt_path?")),
        (("--learning-rate", "5"), ("no option 'learning-rate'", "did you mean model.optimizer.lr?")),
        (("--max-seeds", "9"), ("no option 'max-seeds'", "it goes with --until")),
        (("--trainer.deterministic", "maybe"), ("expected bool or ['warn'], got maybe",)),
        (("--model.optimizer.lr", "fast"), ("error: model.optimizer.lr: expected float, got fast",)),
        (("--data.batch_size",), ("data.batch_size: expected a value, got none", "write --data.batch_size VALUE")),
        (("--trainer.max_epoch.foo", "3"), ("no option 'trainer.max_epoch.foo'", "did you mean trainer.max_epochs?")),
        (("--trainer.max_epochs.foo", "3"), ("no option 'trainer.max_epochs.foo'", "did you mean trainer.max_epochs?")),
        (("--data.batch_size.foo", "3"), ("no option 'data.batch_size.foo'", "did you mean data.batch_size?")),
        (("--model.net", "mylip.MyNet"), ("no module 'mylip'", "on PYTHONPATH")),
        (
            ("--model", "mylib.MyModule"),
            ("model: expected options", "LightningModule of your own with pl.Trainer"),
        ),
        (("--config", "nope.yaml"), ("config: there is no file ",)),
        (("--config", "quickstrat.yaml"), ("config: there is no file ", "configs/quickstart.yaml?")),
        (("--trainer.accumulate_grad_batches", "3"), ("set a larger data.batch_size",)),
        (("--trainer.callbacks+=LearningRateFinder",), ("LearningRateFinder does not work where a run may",)),
        (("--data", "CIFAR11"), ("no class 'CIFAR11'", "did you mean CIFAR10")),
        (("--trainer.callbacks+=WeigthMass",), ("no class 'WeigthMass'", "did you mean WeightMass")),
        (
            ("--trainer.callbacks+=BnLambda",),
            ("trainer.callbacks has BnLambda twice", "an argument that makes it different"),
        ),
        (("--trainer.max_epochs", "many"), ("trainer.max_epochs: expected int, got many",)),
        (("--model.arms.plain.net.init_args.depth", "21"), ("got 21", "Nearest: 20 and 23")),
        (("--ckpt_path", "nowhere.ckpt"), ("found no file nowhere.ckpt",)),
        (("--config", "nowhere.yaml"), ("nowhere.yaml",)),
        (("--run.name", "../elsewhere"), ("run.name: expected the name of a folder", "got '../elsewhere'")),
        (("--data", "CIFAR10", "--data.root", "empty"), ("empty", "CIFAR-10")),
        (  # which cannot be downloaded
            ("--model.arms.plain.net", "torchvision.models.resnet18", "--model.arms.plain.net.weights", "DEFAULT"),
            ("this configuration cannot be built",),
        ),
        (("--data.batch_size", "0"), ("batch_size of Digits must be at least 1, got 0",)),
        (("--model.arms", "{}"), ("either `model.net`",)),
        (
            ("--model.arms", "{plain: lightning_app.networks.ResidualMLP}"),
            ("model.arms.plain: expected options", "got lightning_app.networks.ResidualMLP", "plain: {net: lig"),
        ),
        (
            ("--model.arms", "{a: {net: ResidualMLP}, 2: ResidualMLP}"),
            ("model.arms.2: expected options", "got ResidualMLP.", "write 2: {net: ResidualMLP}."),
        ),
        (
            ("--model.arms", "{a: {net: NoSuchNet}, b: {net: ResidualMLP}}"),
            ("model.arms.a.net: there is no class 'NoSuchNet'",),
        ),
        (("--model.arms", "{a: ResidualMLP}"), ("model.arms.a: ", "got ResidualMLP.", "write a: {net: ResidualMLP}.")),
    ],
)
def test_a_mistake_gets_a_message_and_leaves_nothing_behind(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    error = refused(*TINY, *words, capsys=capsys, monkeypatch=monkeypatch)
    assert all(piece in error for piece in said), error
    assert not list((tmp_path / "runs").rglob("*.*"))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("data.init_args.batchsize", 3, ("no option 'data.batchsize'", "did you mean data.batch_size?")),
        ("data.init_args.batch_size", "x", ("data.batch_size: expected int, got x",)),
        ("data.init_args.batch_size", None, ("data: batch_size of Digits", "got None")),
        (
            "data.batch_size",
            3,
            ("data: expected a subclass of", "got class_path, init_args, batch_size."),
        ),
        (
            "data.class_path",
            "torch.nn.Linear",
            ("data: expected a subclass of LightningDataModule", "got torch.nn.Linear"),
        ),
        ("trainer.callbacks.5.init_args.every", 3, ("no option 'trainer.callbacks[5].every'", "[5].every_n_epochs")),
        ("trainer.callbacks.5.init_args.samples", "x", ("trainer.callbacks[5].samples: expected int, got x",)),
        ("trainer.callbacks.3.class_path", "LayerCushon", ("trainer.callbacks[3]: there is no class", "LayerCushion")),
        ("trainer.callbacks.3.class_path", "EarlyStopping", ("trainer.callbacks[3].monitor: expected a value",)),
        ("trainer.callbacks.3", None, ("trainer.callbacks[3]: expected a subclass of Callback", "got None")),
        ("trainer.callbacks.5.init_args.every_n_epochs", 0, ("trainer.callbacks[5]: ", "every_n_epochs", "got 0")),
        ("trainer.callbacks.3", {1: 2}, ("trainer.callbacks[3]",)),
        (
            "trainer.callbacks.3.init_args",
            None,
            ("trainer.callbacks[3].init_args: expected arguments by name, got none", "leave init_args out"),
        ),
        ("data.init_args", [5], ("data.init_args: expected arguments by name, got a list",)),
        (
            "model.arms.plain.net.init_args",
            None,
            ("model.arms.plain.net.init_args: expected arguments by name, got none",),
        ),
        ("model.arms.a-b", "MLP", ("model.arms.a-b: expected options such as net, got MLP", "a-b: {net: MLP}")),
        ("trainer.logger.0.class_path", "CSVLoger", ("trainer.logger: there is no class", "CSVLogger")),
        ("trainer.logger.0.init_args.mode", "x", ("trainer.logger[0].mode: expected ['auto', 'online'",)),
        ("model.arms.plain", None, ("model.arms.plain: expected options such as net, got None", "plain: {net: CLASS}")),
        (
            "model.arms.plain.nets",
            {"class_path": "MLP"},
            ("no option 'model.arms.plain.nets'", "model.arms.plain.net?"),
        ),
        ("model.arms.plain.net", {"class_path": "torch.nn.Linear"}, ("net.in_features and model.arms.plain.net.out_",)),
        ("model.arms.plain.net.init_args.depth", "x", ("model.arms.plain.net.depth: expected int, got x",)),
        ("model.arms.plain.net.init_args.dept", 5, ("'model.arms.plain.net.dept'", "model.arms.plain.net.depth?")),
        ("model.arms.plain.net.init_arg", {}, ("model.arms.plain.net: expected a class", "init_args, init_arg.")),
        ("model.optimizer.init_args.betas", [0.9, "x"], ("model.optimizer.betas[1]: expected float, got x",)),
        (
            "model.optimizer.init_args.momentm",
            1,
            ("no option 'model.optimizer.momentm'", "model.optimizer takes amsgrad"),
        ),
        ("model.optimizer.init_args.lr", float("nan"), ("model.optimizer or model.scheduler", "nan")),
        (
            "model.scheduler",
            {"class_path": "torch.optim.lr_scheduler.StepLR"},
            ("model.scheduler.step_size: expected a",),
        ),
        ("model.scheduler", ["torch.nn.Linear", 3], ("model.scheduler: expected a class", "got ")),
    ],
)
def test_a_mistake_within_a_class_is_said_with_its_full_path(tmp_path, monkeypatch, capsys, path, value, said):
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    *above, last = path.split(".")
    inner = functools.reduce(lambda at, key: at[int(key) if key.isdigit() else key], above, config)
    inner[int(last) if last.isdigit() else last] = value
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    error = refused("fit", "--config", "bad.yaml", *TINY[3:9], capsys=capsys, monkeypatch=monkeypatch)
    assert all(piece in error for piece in said) and "shtab" not in error, error


def test_an_empty_configuration_is_said_to_be_none(tmp_path, monkeypatch, capsys):
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    words = (*TINY, "--config", tmp_path / "empty.yaml")
    error = refused(*words, capsys=capsys, monkeypatch=monkeypatch)
    assert "empty.yaml: expected options such as model:" in error


@pytest.mark.parametrize("group", ["trainer", "run", "save_checkpoint", "model", "data"])
@pytest.mark.parametrize("value", ["5", "null", "[1]"])
def test_a_value_in_place_of_options_is_said_with_its_file(tmp_path, monkeypatch, capsys, group, value):
    (tmp_path / "bad.yaml").write_text(f"{group}: {value}\n")
    error = refused("fit", "--config", tmp_path / "bad.yaml", capsys=capsys, monkeypatch=monkeypatch)
    assert f"bad.yaml: {group}: expected options, such as " in error


@pytest.mark.parametrize("words", [("report", ""), ("board", ""), ("compare", "", "a"), ("report", "a", "--out", "")])
def test_an_empty_path_is_not_the_working_folder(monkeypatch, capsys, words):
    assert "expected a value, got an empty text" in refused(*words, capsys=capsys, monkeypatch=monkeypatch)


def test_broken_yaml_names_its_file(tmp_path, monkeypatch, capsys):
    (tmp_path / "bad.yaml").write_text("model:\n  seeds: [1\n")
    error = refused("fit", "--config", tmp_path / "bad.yaml", capsys=capsys, monkeypatch=monkeypatch)
    assert "bad.yaml is not YAML" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model.arms.plain.net.init_args.depth", "8"), "(16, 16, 3, 3), the checkpoint has shape (32, 16, 3, 3)"),
        (("--model.arms.plain.net.init_args.residual", "true"), "it has 'plain' (seed 0, plain SimplifiedNet)"),
        (("--model.seeds", "7-7"), "seed 7"),
        (("--model.optimizer", "torch.optim.SGD", "--model.optimizer.lr", "0.1"), "trained with Adam"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused(finished, tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    resume = (*TINY, *words, "--trainer.logger", "[]", "--ckpt_path", finished / RUN / "checkpoints" / "last.ckpt")
    assert said in refused(*resume, capsys=capsys, monkeypatch=monkeypatch)
    assert not list((tmp_path / "runs").rglob("*.*"))


def test_a_broken_checkpoint_is_an_error_message(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    checkpoint = finished / RUN / "checkpoints" / "last.ckpt"
    for content in (b"not a checkpoint", checkpoint.read_bytes()[:5000]):
        (tmp_path / "bad.ckpt").write_bytes(content)
        words = (*TINY, "--trainer.logger", "[]", "--ckpt_path", "bad.ckpt")
        assert "bad.ckpt cannot be read" in refused(*words, capsys=capsys, monkeypatch=monkeypatch)


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    stopped = stop(tmp_path, STEPS_AN_EPOCH + 5, signal.SIGINT, *TINY, *LONG)
    assert stopped.returncode == 130
    assert "--ckpt_path last" in stopped.said
    assert "Traceback" not in stopped.said
    assert (tmp_path / RUN / "checkpoints" / "last.ckpt").exists()


def test_no_command_and_a_wrong_one(monkeypatch, capsys):
    assert main([]) == 2
    assert "unknown command 'fitt'" in refused("fitt", capsys=capsys, monkeypatch=monkeypatch)
    before = refused("--config", "x.yaml", "fit", capsys=capsys, monkeypatch=monkeypatch)
    assert "expected a command before the options, got '--config'" in before
