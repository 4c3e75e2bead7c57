"""Members shared out among ranks: shares, and two real processes that leave what one leaves."""

import pytest
import torch
from torch import nn

from lightning_app.errors import UserError
from lightning_app.modules.members import Member
from lightning_app.modules.sharding import shares
from tests.helpers import TINY, command, log_rows


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


def test_more_ranks_than_members_is_a_sentence():
    with pytest.raises(UserError, match=r"3 processes cannot share out 2 member\(s\)"):
        shares(bank(2, 1), 3)


SEEDS = ("--model.seeds", "3", "--trainer.accelerator", "cpu")


def checkpoint(folder) -> dict:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.mark.slow
def test_two_processes_leave_what_one_leaves_bit_for_bit(tmp_path):
    """Weights, optimizer, log and arrays, with all of the quickstart's callbacks; also after a resume."""
    one = command(*TINY, *SEEDS, "--run.name", "one", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    two = (*TINY, *SEEDS, "--run.name", "two", "--trainer.strategy", "seeds", "--trainer.devices", "2")
    half = command(*two, "--trainer.max_epochs", "1", cwd=tmp_path)
    assert half.returncode == 0, half.stderr
    rest = command(*two, "--ckpt_path", "last", cwd=tmp_path)
    assert rest.returncode == 0, rest.stderr
    alone, shared = (tmp_path / "runs" / "digits" / name for name in ("one", "two"))
    assert log_rows(alone) == log_rows(shared)
    ours, theirs = checkpoint(alone), checkpoint(shared)
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()
    assert all(torch.equal(ours["state_dict"][key], theirs["state_dict"][key]) for key in ours["state_dict"])
    moments, others = (saved["optimizer_states"][0]["state"] for saved in (ours, theirs))
    assert moments.keys() == others.keys()
    assert all(torch.equal(moments[i][key], others[i][key]) for i in moments for key in moments[i])
    for file in sorted((alone / "measurements").rglob("*.npz")):
        assert file.read_bytes() == (shared / file.relative_to(alone)).read_bytes()


@pytest.mark.slow
def test_too_many_processes_is_said_before_training(tmp_path):
    said = command(
        *TINY, "--trainer.strategy", "seeds", "--trainer.devices", "3", "--trainer.accelerator", "cpu", cwd=tmp_path
    )
    assert said.returncode != 0
    assert "3 processes cannot share out 2 member(s)" in said.stderr
