"""`extract`: a member of a bank, taken out, is what it would be had it been trained alone."""

import copy

import pytest
import torch
from pytorch_lightning.callbacks import ModelPruning

from callbacks import DistanceFromStart, TrainingMetrics
from lightning_app.cli import main
from lightning_app.cli.checkpoints import extract_member
from lightning_app.common.errors import UserError
from lightning_app.modules import Arm
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.helpers import TINY, arm, classifier, command, digits, fit, identical, log_rows, same_weights, trainer

ADAM = {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=1e-3)}
STEPPED = {"scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def bank(**more):
    return classifier({"plain": arm(False), "residual": arm(True, 8)}, seeds=[4, 1], **(ADAM | STEPPED | more))


def alone(seed: int = 1, **more):
    return classifier({"net": arm(True, 8)}, seeds=[seed], **(ADAM | STEPPED | more))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoint of a bank of four after one epoch."""
    path = tmp_path_factory.mktemp("bank") / "bank.ckpt"
    one = trainer(1, callbacks=[DistanceFromStart()])
    one.fit(bank(), datamodule=digits())
    one.save_checkpoint(path)
    return path


def _made(folder):
    folder.mkdir()
    return folder


def extracted(saved, folder, member="residual-seed01"):
    target = folder / "one.ckpt"
    assert main(["extract", str(saved), str(target), "--member", member]) == 0
    return target


def test_it_goes_on_as_the_bank_would(saved, tmp_path):
    whole = fit(bank(), epochs=2)
    one = alone()
    trainer(2).fit(one, datamodule=digits(), ckpt_path=extracted(saved, tmp_path))
    (theirs,) = (member.net for member in whole.members if member.name == "residual-seed01")
    assert same_weights(theirs, one.members[0].net)


def test_as_safetensors_it_is_the_weights_and_what_they_are_of(saved, tmp_path, capsys):
    read = AtomicCheckpointIO().load_checkpoint
    assert main(["extract", str(saved), str(tmp_path / "one.safetensors"), "--member", "residual-seed01"]) == 0
    assert "weights alone: you can validate, test and measure them; fit cannot resume" in capsys.readouterr().out
    packed, whole = read(tmp_path / "one.safetensors"), read(extracted(saved, tmp_path))
    assert identical(packed["state_dict"], whole["state_dict"]) and packed["members"] == whole["members"]
    with pytest.raises(UserError, match="without the optimizer's state"):
        trainer(2, plugins=[AtomicCheckpointIO()]).fit(
            alone(), datamodule=digits(), ckpt_path=tmp_path / "one.safetensors"
        )
    for kept in ({"steps": 1}, torch.ones(2, dtype=torch.complex128)):
        odd = read(saved) | {"state_dict": {"net._extra_state": kept}}
        with pytest.raises(UserError, match="hold only dense tensors, and none of complex128"):
            AtomicCheckpointIO().save_checkpoint(odd, tmp_path / "odd.safetensors")


def test_it_is_what_training_alone_would_have_saved(saved, tmp_path):
    path = tmp_path / "alone.ckpt"
    one = trainer(1, callbacks=[DistanceFromStart()])
    one.fit(alone(), datamodule=digits())
    one.save_checkpoint(path)
    files = AtomicCheckpointIO()
    assert identical(files.load_checkpoint(extracted(saved, tmp_path)), files.load_checkpoint(path))


def test_the_bank_is_left_as_it_was(saved):
    checkpoint = AtomicCheckpointIO().load_checkpoint(saved)
    before = copy.deepcopy(checkpoint)
    extract_member(checkpoint, "plain-seed04")
    assert identical(checkpoint, before)


def test_a_checkpoint_without_optimizer_state_of_a_sequence_is_taken_too(saved):
    """SGD without momentum keeps nothing: the state is empty, not absent."""
    checkpoint = AtomicCheckpointIO().load_checkpoint(saved)
    checkpoint["optimizer_states"][0]["state"] = {}
    (state,) = extract_member(checkpoint, "plain-seed04")["optimizer_states"]
    assert state["state"] == {} and len(state["param_groups"][0]["params"]) == checkpoint["parameters"]["plain-seed04"]


def test_what_a_callback_keeps_of_some_members_is_that_of_the_member_if_it_is_one_of_them(saved):
    checkpoint = AtomicCheckpointIO().load_checkpoint(saved)
    checkpoint["callbacks"] = {"Some": {"seen": {"residual-seed01": 3, "residual-seed04": 5}, "rate": {"every": 2}}}
    for member, seen in (("residual-seed01", {"net": 3}), ("plain-seed01", {})):
        assert extract_member(checkpoint, member)["callbacks"] == {"Some": {"seen": seen, "rate": {"every": 2}}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--member", "nobody"), "no member 'nobody'; it has plain-seed04, plain-seed01"),
        ((), "--member"),
        (("--member", "plain-seed04", "--target"), "already exists"),
    ],
)
def test_mistakes_are_error_messages(saved, tmp_path, capsys, words, message):
    target = saved if "--target" in words else tmp_path / "x.ckpt"
    assert main(["extract", str(saved), str(target), *(word for word in words if word != "--target")]) == 2
    assert message in capsys.readouterr().err


def test_a_checkpoint_from_before_is_told_what_to_do(saved):
    checkpoint = AtomicCheckpointIO().load_checkpoint(saved)
    del checkpoint["parameters"]
    with pytest.raises(UserError, match="Resume from it"):
        extract_member(checkpoint, "plain-seed04")


def test_final_weights_alone_are_refused(saved):
    checkpoint = AtomicCheckpointIO().load_checkpoint(saved)
    del checkpoint["optimizer_states"]
    with pytest.raises(UserError, match="has only the final weights: name a checkpoint"):
        extract_member(checkpoint, "plain-seed04")


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_optimizer_that_does_not_have_all_weights_in_one_group_is_refused(saved, count):
    """Its state numbers weights group by group, and does not say of which net each is."""
    checkpoint = AtomicCheckpointIO().load_checkpoint(saved)
    groups = checkpoint["optimizer_states"][0]["param_groups"]
    first, *others = groups[0]["params"]
    groups[:] = [groups[0] | {"params": params} for params in (others, [first])[:count]]
    got = ("none", f"{len(others)}", f"{len(others)} and 1")[count]
    with pytest.raises(UserError, match=f"all {1 + len(others)} weights of these nets in one group, .*, got {got}:"):
        extract_member(checkpoint, "plain-seed04")


def test_an_optimizer_that_has_the_weights_in_an_order_of_its_own_is_refused(tmp_path):
    """Nets of one architecture would get each other's momentum, as their weights have the same shapes."""
    one = trainer(1)
    one.fit(bank(optimizer=lambda parameters: torch.optim.Adam([*parameters][::-1])), datamodule=digits())
    one.save_checkpoint(tmp_path / "bank.ckpt")
    with pytest.raises(UserError, match="in the order of the nets, got another order:"):
        extract_member(AtomicCheckpointIO().load_checkpoint(tmp_path / "bank.ckpt"), "plain-seed04")


def test_the_only_net_of_a_checkpoint_keeps_its_optimizer_in_any_order(saved):
    one = extract_member(AtomicCheckpointIO().load_checkpoint(saved), "plain-seed04") | {"in_order": False}
    states = [checkpoint["optimizer_states"][0]["state"] for checkpoint in (one, extract_member(one, "net"))]
    assert states[0].keys() == states[1].keys()


def test_layers_that_were_pruned_in_training_leave_the_optimizer_its_order(tmp_path):
    """Pruning registers a weight anew, behind its layer's bias."""
    pruning = {"use_global_unstructured": False, "parameter_names": ["weight"], "amount": 0.2}
    one = trainer(1, callbacks=[ModelPruning("random_unstructured", **pruning)])
    one.fit(bank(channels_last=False), datamodule=digits())
    one.save_checkpoint(tmp_path / "bank.ckpt")
    assert extract_member(AtomicCheckpointIO().load_checkpoint(tmp_path / "bank.ckpt"), "plain-seed04")


def test_weights_alone_are_extracted_beside_any_optimizer(saved, tmp_path):
    whole = AtomicCheckpointIO().load_checkpoint(saved)
    whole["optimizer_states"][0]["param_groups"][0]["params"].pop()
    bank, one = tmp_path / "bank.ckpt", tmp_path / "one.safetensors"
    AtomicCheckpointIO().save_checkpoint(whole, bank)
    assert main(["extract", str(bank), str(one), "--member", "plain-seed04"]) == 0
    found = AtomicCheckpointIO().load_checkpoint(one)["state_dict"]
    assert identical(found, extract_member(AtomicCheckpointIO().load_checkpoint(saved), "plain-seed04")["state_dict"])


def test_a_dropout_net_and_its_twinless_bank(tmp_path):
    """Nets without ID entries have none to name."""

    def dropped() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(3 * 32 * 32, 10))

    one = trainer(1)
    one.fit(classifier({"a": Arm(net=dropped), "b": arm(True)}), datamodule=digits())
    one.save_checkpoint(tmp_path / "bank.ckpt")
    found = extract_member(AtomicCheckpointIO().load_checkpoint(tmp_path / "bank.ckpt"), "a")
    assert found["id_weights"] == {"net": []} and found["members"][0]["name"] == "net"


def test_a_twin_is_told_which_penalty_it_had(tmp_path, capsys):
    one = trainer(1)
    one.fit(classifier({"r": arm(True), "p": Arm(twin_of="r")}), datamodule=digits())
    one.save_checkpoint(tmp_path / "bank.ckpt")
    for member, centre in (("p", "identity"), ("r", "zero")):
        extracted(tmp_path / "bank.ckpt", _made(tmp_path / member), member)
        assert ("--model.decay_towards identity" in capsys.readouterr().out) == (centre == "identity")
    plain = classifier({"net": Arm(net=arm(False).net, decay_towards="identity")})
    trainer(2).fit(plain, datamodule=digits(), ckpt_path=tmp_path / "p" / "one.ckpt")
    whole = fit(classifier({"r": arm(True), "p": Arm(twin_of="r")}), epochs=2)
    assert same_weights(whole.members[1].net, plain.members[0].net)


def test_of_arms_with_batches_of_their_own_it_says_that_a_net_alone_gets_others(tmp_path, capsys):
    for shared in (True, False):
        one = trainer(1)
        one.fit(bank(share_batches=shared), datamodule=digits())
        one.save_checkpoint(tmp_path / "bank.ckpt")
        extracted(tmp_path / "bank.ckpt", _made(tmp_path / str(shared)))
        assert ("gets other batches than in the bank" in capsys.readouterr().out) != shared
    assert (
        main(["extract", str(tmp_path / "bank.ckpt"), str(tmp_path / "w.safetensors"), "--member", "plain-seed04"]) == 0
    )
    assert "other batches" not in capsys.readouterr().out  # it cannot be trained further


@pytest.mark.slow
def test_on_the_command_line(tmp_path):
    """Two epochs of a bank of four; one member, extracted after the first, repeats its second alone."""
    bank = (*TINY, "--model.seeds", "2", "--trainer.callbacks", "TrainingMetrics")
    bank += ("--save_checkpoint.keep_every_n_epochs", "1")
    assert command(*bank, cwd=tmp_path).returncode == 0
    run = tmp_path / "runs/digits/quickstart"
    first = run / "checkpoints/epoch=0001.ckpt"
    done = command("extract", first, "one.ckpt", "--member", "residual-seed01", cwd=tmp_path)
    assert done.returncode == 0 and "--model.seeds 1-1" in done.stdout, done.stderr
    net = ("--model.net", "SimplifiedNet", "--model.net.depth", "5", "--model.net.residual", "true")
    single = (*TINY[:-8], "--model.arms", "null", *net, "--model.seeds", "1-1", "--run.name", "alone")
    done = command(*single, "--trainer.callbacks", "TrainingMetrics", "--ckpt_path", "one.ckpt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours = [row[1:] for row in log_rows(tmp_path / "runs/digits/alone") if row[0] == "net" and row[1] == "2"]
    theirs = [row[1:] for row in log_rows(run) if row[0] == "residual-seed01" and row[1] == "2"]
    assert ours == theirs and len(ours) >= 8
    assert TrainingMetrics.__name__ in (run / "config.yaml").read_text()
