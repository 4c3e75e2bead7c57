"""Members shared out among ranks: shares, and two real processes that leave what one leaves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from callbacks.clock import EpochCallback
from callbacks.log import LoggingCallback
from lightning_app.common.errors import UserError
from lightning_app.modules.members import Member, exchange, shares
from lightning_app.runs import RunFolder
from lightning_app.runs.folder import find_runs
from tests.forked import MAIN, Popen
from tests.helpers import ROOT, TINY, assert_same_run, callbacks_in, command, identical, shipped


def bank(arms: int, seeds: int) -> list[Member]:
    return [Member(f"{arm}-{seed}", str(arm), seed, nn.Identity()) for arm in range(arms) for seed in range(seeds)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 26])
def test_every_member_has_one_rank_and_shares_are_even(ranks):
    members = bank(2, 13)
    shared = shares(members, ranks)
    assert sorted(m.name for share in shared for m in share) == sorted(m.name for m in members)
    sizes = [len(share) for share in shared]
    assert max(sizes) - min(sizes) <= 1
    streams = sum(len({member.seed for member in share}) for share in shared)
    assert streams <= 13 + ranks - 1  # a seed's data stream is made twice only where a share ends


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_twins_stay_with_what_they_are_twins_of(ranks):
    net = nn.Identity()
    pairs = [(Member(f"r{s}", "r", s, net), Member(f"p{s}", "p", s, net, twin_of=f"r{s}")) for s in range(5)]
    twins_first = [member for pair in pairs for member in reversed(pair)]
    shared = [{member.name for member in share} for share in shares(twins_first, ranks)]
    assert sum(map(len, shared)) == 10 and max(map(len, shared)) - min(map(len, shared)) in (0, 2)
    assert all({f"r{s}", f"p{s}"} <= share or not {f"r{s}", f"p{s}"} & share for share in shared for s in range(5))


def test_shares_of_families_of_several_sizes_hold_as_many_nets_as_they_can():
    net = nn.Identity()
    twins = [Member(f"t{i}", "t", 0, net, twin_of=f"{i}-0") for i in (4, 5)]
    assert [len(share) for share in shares([*bank(6, 1), *twins], 2)] == [4, 4]  # counted by families: 3 and 5
    twins = [Member(f"t{i}", "t", 0, net, twin_of="2-0") for i in range(3)]
    assert [len(share) for share in shares([*bank(3, 1), *twins], 3)] == [1, 1, 4]  # no rank goes empty


def test_more_ranks_than_members_is_an_error():
    with pytest.raises(UserError, match=r"at most 2 process\(es\) for 2 member\(s\), got 3"):
        shares(bank(2, 1), 3)
    twin = Member("p", "p", 0, nn.Identity(), twin_of="0-0")
    with pytest.raises(UserError, match=r"at most 1 process\(es\) for 2 member\(s\) \(twins stay together\), got 2"):
        shares([*bank(1, 1), twin], 2)


@pytest.mark.parametrize("left", [0, 2])
def test_weights_of_which_the_optimizer_keeps_nothing_are_exchanged_without_a_state(left):
    """Such as frozen ones, which a function that makes the optimizer leaves out, or all after a restart of momentum."""
    sent: list = []
    made = []
    for rank in range(2):
        net = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
        optimizer = torch.optim.Adam(weight for weight in net.parameters() if weight.requires_grad)
        if rank == 0 or not left:
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        if rank == 0 and not left:
            optimizer.state.clear()
        strategy = SimpleNamespace(global_rank=rank, broadcast=lambda packed, _: sent.append(packed) or sent[0])
        exchange({"net": 0}, [Member("net", "net", 0, net)], {}, optimizer, strategy)
        made.append({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    assert identical(*made) and len(made[0]["optimizer"]["state"]) == left


FEWER = {  # of what takes most time, and is not more equal for being more
    "DrivingForce": {"samples": 4},
    "InterlayerCushion": {"samples": 4},
    "HessianSpectrum": {"samples": 4, "steps": 4, "exact": 0},
    "LossSurface": {"samples": 4, "radii": [0.1], "rays": 2},
    "NoiseStability": {"samples": 3, "strengths": [0.1], "draws": 1, "tangents": 2},
    "EffectiveDepth": {"samples": 4, "gradient_samples": 2},
}


def looking() -> list[dict]:
    """The callbacks that look at nets; all measure every epoch, and within it.

    Otherwise one that measures the final epoch would measure where the first half ends.
    """
    known = {callback.__name__: callback for callback in shipped()}
    names = sorted(name for name, callback in known.items() if issubclass(callback, LoggingCallback))
    assert callbacks_in() <= set(names)
    schedule = {"every_n_epochs": 1, "every_n_steps": 2}  # of three an epoch
    return [
        {"class_path": name, "init_args": FEWER.get(name, {}) | (schedule if takes_schedule(known[name]) else {})}
        for name in names
    ]


def takes_schedule(callback: type) -> bool:
    return issubclass(callback, EpochCallback)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A bank of three residual nets and their twins with every callback there is, trained by one process."""
    folder = tmp_path_factory.mktemp("everything")
    net = {"class_path": "SimplifiedNet", "init_args": {"depth": 5, "width": 4}}
    config = {
        "run": {"group": "g", "name": "one"},
        "model": {"seeds": 3, "arms": {"residual": {"net": net}, "plain": {"twin_of": "residual"}}, "ema_decay": 0.9},
        "data": {
            "class_path": "Digits",
            "init_args": {"image_size": 8, "train_limit": 64, "test_limit": 40, "probe_size": 20, "batch_size": 30},
        },
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "precision": "64-true"},
    }
    config["trainer"]["callbacks"] = looking()
    (folder / "all.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    done = command("fit", "--config", "all.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["seeds", "ddp"])
def test_two_processes_with_every_callback_say_what_one_says_though_one_of_them_dies(everything, strategy):
    """No callback waits for a rank that does not come, and every sample is counted once.

    Rank one is killed after the first epoch: the other says so within seconds. Resumed, nothing shows of it.
    """
    words = ("fit", "--config", "all.yaml", "--trainer.devices", "2", "--trainer.strategy", strategy)
    words += ("--run.name", strategy)
    one, two = (everything / "runs" / "g" / name for name in ("one", strategy))
    code, said, waited = _killed_after_an_epoch(words, two)
    assert code != 0 and "another process of this job died" in said and "--ckpt_path last" in said
    assert "Traceback" not in said and waited < 240
    resumed = command(*words, "--ckpt_path", "last", cwd=everything)
    assert resumed.returncode == 0, resumed.stderr
    if strategy == "seeds":
        assert_same_run(one, two)
        assert {"twin", "interlayer", "cushion", "hessian"} <= {file.stem for file in one.rglob("*.npz")}
    else:  # sums over ranks are added in another order; rank zero's share of twins' steps, neighbours within a share
        ours, theirs = (
            RunFolder(folder).log().set_index(["member", "epoch", "name"])["value"] for folder in (one, two)
        )
        assert set(ours.index) == set(theirs.index)
        apart = ("cost/", "time/", "twin/")
        same = [key for key in ours.index if not key[2].startswith(apart) and "gradient_correlation" not in key[2]]
        assert len(same) > 1000
        assert np.allclose(ours[same], theirs[same], rtol=1e-7, atol=1e-9, equal_nan=True)


MINE = """
import pytorch_lightning as pl, torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

class Mine(pl.LightningDataModule):
    def data(self):
        draw = torch.Generator().manual_seed(0)
        images, labels = torch.randn(36, 3, 8, 8, generator=draw), torch.randint(10, (36,), generator=draw)
        return TensorDataset(images, labels)

    def train_dataloader(self):
        return DataLoader(self.data(), batch_size=8, sampler=RandomSampler(self.data(), generator=torch.Generator()))

    def val_dataloader(self):
        return DataLoader(self.data(), batch_size=8)
"""


@pytest.mark.slow
def test_each_process_trains_its_nets_on_all_samples_of_a_loader_of_ones_own(tmp_path):
    """Lightning would give each process its share of them."""
    (tmp_path / "mine.py").write_text(MINE)
    net = {"class_path": "SimplifiedNet", "init_args": {"depth": 5, "width": 4}}
    callbacks = [{"class_path": name} for name in ("TrainingMetrics", "WeightMass")]
    config = {
        "run": {"group": "g", "name": "one"},
        "model": {"seeds": 2, "net": net},
        "data": {"class_path": "mine.Mine"},
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "callbacks": callbacks, "logger": []},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    two = ("--run.name", "two", "--trainer.devices", "2", "--trainer.strategy", "seeds")
    for more in ((), two):
        done = command("fit", "--config", "mine.yaml", *more, cwd=tmp_path, env=path)
        assert done.returncode == 0, done.stderr
    assert_same_run(*(tmp_path / "runs" / "g" / name for name in ("one", "two")))
    refused = command("fit", "--config", "mine.yaml", *two, "--trainer.sync_batchnorm", "true", cwd=tmp_path, env=path)
    assert refused.returncode == 2 and "would mix nets" in refused.stderr


@pytest.mark.slow
def test_processes_that_share_batches_take_the_same_steps_by_line_search(tmp_path):
    """LBFGS asks for the cost: of the whole batch, not of a process's share."""
    net = {"class_path": "SimplifiedNet", "init_args": {"depth": 5, "width": 4}}
    lbfgs = {
        "class_path": "torch.optim.LBFGS",
        "init_args": {"lr": 1.0, "max_iter": 4, "line_search_fn": "strong_wolfe"},
    }
    data = {"image_size": 8, "train_limit": 40, "test_limit": 20, "probe_size": 10, "batch_size": 20}
    config = {
        "run": {"group": "g", "name": "one"},
        "model": {"net": net, "optimizer": lbfgs, "scheduler": None, "channels_last": False},
        "data": {"class_path": "Digits", "init_args": data},
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "precision": "64-true", "logger": []},
    }
    config["trainer"]["callbacks"] = [{"class_path": "TrainingMetrics"}]
    (tmp_path / "lbfgs.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    risks = []
    for name, more in (
        ("one", ()),
        ("two", ("--run.name", "two", "--trainer.devices", "2", "--trainer.strategy", "ddp")),
    ):
        done = command("fit", "--config", "lbfgs.yaml", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        risks.append(RunFolder(tmp_path / "runs" / "g" / name).log().query("name == 'train/risk'")["value"].to_numpy())
    assert len(risks[0]) == 3 and np.allclose(*risks, rtol=1e-6)


BREAKS = """
from torch import nn

class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images):
        return self.layer(images.mean(1).flatten(1)) * (float("nan") if self.training else 1.0)
"""


@pytest.mark.slow
def test_the_net_that_diverged_is_noted_by_the_process_that_trains_it(tmp_path):
    (tmp_path / "breaks.py").write_text(BREAKS)
    arms = "{sound: {net: {class_path: SimplifiedNet, init_args: {depth: 5, width: 4}}}, broken: {net: breaks.Breaks}}"
    two = ("--trainer.devices", "2", "--trainer.strategy", "seeds", "--trainer.accelerator", "cpu")
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = command(*TINY, "--model.arms", arms, *two, cwd=tmp_path, env=path)
    assert done.returncode != 0 and "member 'broken' became NaN or infinite" in done.stderr
    (run,) = find_runs([tmp_path / "runs"])
    assert run.divergence() == ("broken", 1)


@pytest.mark.slow
def test_too_many_processes_are_refused_before_training(tmp_path):
    said = command(
        *TINY, "--trainer.strategy", "seeds", "--trainer.devices", "3", "--trainer.accelerator", "cpu", cwd=tmp_path
    )
    assert said.returncode != 0
    assert "at most 2 process(es) for 2 member(s), got 3" in said.stderr


def _killed_after_an_epoch(words: tuple[str, ...], run: Path) -> tuple[int, str, float]:
    """Exit code, standard error, and seconds from rank one's death to the job's."""
    environment = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with Popen([sys.executable, MAIN, *words], cwd=run.parents[2], env=environment, **streams) as job:
        deadline = time.monotonic() + 300
        while not (run / "checkpoints" / "last.ckpt").exists():
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(_rank_one(job.pid), signal.SIGKILL)
        killed = time.monotonic()
        _, said = job.communicate(timeout=300)
        return job.returncode, said, time.monotonic() - killed


def _rank_one(main: int) -> int:
    """The process that Lightning's launcher started: a child of rank zero that runs what it runs."""
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    (rank,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "skipscope\n"]
    return rank
