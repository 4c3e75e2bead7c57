"""T on checkpoints: the same function through the real command line, the same bits off the ID entries, every refusal."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from lightning_app.cli import main
from lightning_app.cli.checkpoints import transfer_checkpoint
from lightning_app.common.errors import UserError
from lightning_app.identity import id_entries, transfer
from lightning_app.modules import Arm
from lightning_app.networks import CifarResNet, SimplifiedNet
from lightning_app.runs.checkpoints import AtomicCheckpointIO
from tests.helpers import LEARNING, ROOT, TINY, arm, classifier, command, digits, identical, trainer

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
IDS = 4 + 4 + 8  # of SimplifiedNet(5, width=4): 4 -> 4, 4 -> 8, 8 -> 16 channels


def saved(path: Path, arms: dict[str, Arm], **more) -> Path:
    runner, module = trainer(1, plugins=[AtomicCheckpointIO()], **more), classifier(arms)
    runner.fit(module, datamodule=digits())
    runner.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def bank(tmp_path_factory) -> Path:
    """A checkpoint of a plain, a residual and a full net."""
    arms = {"plain": arm(False), "residual": arm(True), "full": Arm(net=lambda: CifarResNet(8, width=4))}
    return saved(tmp_path_factory.mktemp("bank") / "bank.ckpt", arms)


def load(path: Path) -> dict:
    return torch.load(path, weights_only=True)


def test_fit_records_which_weights_have_id_entries(bank):
    names = [f"blocks.{i}.conv.weight" for i in range(3)]
    assert load(bank)["id_weights"] == {
        "plain": [f"nets.plain.{name}" for name in names],
        "residual": [f"nets.residual.{name}" for name in names],
        "full": [],
    }


@pytest.mark.parametrize(("inverse", "shifted"), [(False, "residual"), (True, "plain")])
def test_only_the_id_entries_and_the_flag_of_the_right_members_change(bank, inverse, shifted):
    before, given = load(bank), load(bank)
    after, (shift,) = transfer_checkpoint(given, inverse)
    assert identical(given, before)  # the argument is untouched
    assert (shift.member, shift.entries, shift.precision) == (shifted, IDS, "float32")
    rest = before.keys() - {"state_dict", "members"}
    assert {"optimizer_states", "loops", "running"} <= rest
    assert identical({key: after[key] for key in rest}, {key: before[key] for key in rest})
    flags = {one["name"]: one["residual"] for one in after["members"]}
    assert flags == {"plain": inverse, "residual": inverse, "full": True}
    for name, weight in before["state_dict"].items():
        rho = id_entries(weight).float() if name in before["id_weights"][shifted] else torch.zeros(())
        assert torch.equal(after["state_dict"][name], weight + (-rho if inverse else rho)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip_is_exact_off_the_id_entries_and_rounds_once_on_them(bank, dtype):
    before = load(bank)
    generator = torch.Generator().manual_seed(0)
    for name, weight in before["state_dict"].items():
        if weight.is_floating_point():  # drawn in dtype: weights widened from float32 have no low bits to lose
            drawn = torch.randn(weight.shape, dtype=dtype, generator=generator)
            before["state_dict"][name] = 0.01 * drawn
    there, (shift,) = transfer_checkpoint(before)
    back, _ = transfer_checkpoint(there, inverse=True, member="residual")
    largest = allowed = 0.0
    for name, r in before["state_dict"].items():
        again = back["state_dict"][name]
        mask = id_entries(r) if name in before["id_weights"]["residual"] else torch.zeros(r.shape, dtype=torch.bool)
        assert torch.equal(again[~mask], r[~mask])
        errors, bounds = (again - r).abs()[mask], UNIT[dtype] * (1 + r.abs()[mask])
        assert (errors <= bounds).all()
        largest, allowed = max([largest, *errors.tolist()]), max([allowed, *bounds.tolist()])
    assert back["members"] == before["members"]
    assert 0 < shift.error == largest <= shift.bound == pytest.approx(allowed, rel=1e-12)
    assert shift.precision == str(dtype).removeprefix("torch.")


def test_one_member_of_several_can_be_chosen(tmp_path):
    path = saved(tmp_path / "two.ckpt", {"one": arm(True), "two": arm(True)})
    both, shifts = transfer_checkpoint(load(path))
    assert [shift.member for shift in shifts] == ["one", "two"]
    only, _ = transfer_checkpoint(load(path), member="two")
    assert [one["residual"] for one in both["members"]] == [False, False]
    assert [one["residual"] for one in only["members"]] == [True, False]
    for name, weight in load(path)["state_dict"].items():
        expected = both["state_dict"][name] if name.startswith("nets.two.") else weight
        assert torch.equal(only["state_dict"][name], expected)


@pytest.mark.parametrize(("wanted", "found"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
def test_half_precision_is_refused(bank, wanted, found):
    checkpoint = load(bank)
    checkpoint["state_dict"] = {name: weight.to(wanted) for name, weight in checkpoint["state_dict"].items()}
    with pytest.raises(
        UserError, match=rf"blocks.0.conv.weight: expected float32 or float64 .* got torch.{found}: next to the 1"
    ):
        transfer_checkpoint(checkpoint)


def test_trained_on_the_twin_stays_one_where_it_decays_towards_the_identity(tmp_path):
    """Momentum comes along, so in float64 two more epochs differ by rounding; around the wrong centre by the penalty."""
    source, target = tmp_path / "residual.ckpt", tmp_path / "plain.ckpt"
    saved(source, {"net": arm(True)}, precision="64-true")
    assert main(["transfer", str(source), str(target)]) == 0
    residual = trained_on(source, residual=True)
    right, wrong = (trained_on(target, residual=False, decay_towards=centre) for centre in ("identity", "zero"))
    expected = transfer(residual).state_dict()
    assert far(right, expected) < 1e-13 < 1e-6 < far(wrong, expected)
    assert far(residual, load(source)["state_dict"], "nets.net.") > 1e-3  # it has moved


def trained_on(checkpoint: Path, residual: bool, **more) -> SimplifiedNet:
    module = classifier(net=arm(residual).net, **more)
    trainer(3, precision="64-true").fit(module, datamodule=digits(), ckpt_path=checkpoint)
    return module.members[0].net


def far(net: SimplifiedNet, other: dict[str, torch.Tensor], prefix: str = "") -> float:
    return max(float((value - other[prefix + name]).abs().max()) for name, value in net.state_dict().items())


def test_a_checkpoint_from_before_can_still_be_resumed(bank, tmp_path):
    older = load(bank)
    del older["id_weights"]
    torch.save(older, tmp_path / "older.ckpt")
    arms = {"plain": arm(False), "residual": arm(True), "full": Arm(net=lambda: CifarResNet(8, width=4))}
    module = classifier(arms)
    trainer(2).fit(module, datamodule=digits(), ckpt_path=tmp_path / "older.ckpt")
    assert module.trainer.current_epoch == 2


def test_what_the_command_says(bank, tmp_path, capsys):
    assert main(["transfer", str(bank), str(tmp_path / "out.ckpt")]) == 0
    shifted, written, hint = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"residual: 16 ID entries shifted; shifting them back would change them by at most \S+e-08 "
        r"\(limit of rounding in float32: 6\.\de-08\)",
        shifted,
    )
    assert written.startswith(f"written: {tmp_path / 'out.ckpt'} (T: residual -> plain; the optimizer's state is kept")
    assert "only if it has `model.decay_towards: identity`" in hint
    assert main(["transfer", "--inverse", str(bank), str(tmp_path / "back.ckpt")]) == 0
    shifted, written, hint = capsys.readouterr().out.splitlines()
    assert shifted.startswith("plain: 16 ID entries") and "(T^-1: plain -> residual;" in written
    assert "only if the plain net has `model.decay_towards: identity`" in hint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.ckpt", "out.ckpt"]
    kept = {name: value for name, value in load(bank).items() if name != "optimizer_states"}
    torch.save(kept, tmp_path / "final.ckpt")
    assert main(["transfer", str(tmp_path / "final.ckpt"), str(tmp_path / "twin.ckpt")]) == 0
    _, written = capsys.readouterr().out.splitlines()
    assert "weights alone" in written and "fit cannot resume from them" in written


REFUSED = {  # words after `transfer` -> what the message says
    "bank.ckpt": "required: OUT.ckpt",
    "bank.ckpt out.ckpt --invers3": "unrecognized arguments: --invers3; see python main.py transfer --help",
    "nowhere.ckpt out.ckpt": "expected a file at nowhere.ckpt, found none",
    ". out.ckpt": "expected a file at ., found a folder",
    "text.ckpt out.ckpt": "text.ckpt cannot be read: it is truncated or damaged",
    "torn.ckpt out.ckpt": "torn.ckpt cannot be read: it is truncated or damaged",
    "tensor.ckpt out.ckpt": "tensor.ckpt has no state_dict",
    "weights.ckpt out.ckpt": "does not say which of its weights have ID entries",
    "older.ckpt out.ckpt": "Resume from it with `fit --ckpt_path`, and transfer the checkpoint that fit writes",
    "bank.ckpt bank.ckpt": "bank.ckpt already exists and is not overwritten",
    "bank.ckpt text.ckpt": "text.ckpt already exists and is not overwritten: remove it or choose another name",
    "bank.ckpt nowhere/out.ckpt": "expected a folder nowhere to write out.ckpt into, found none: make it first",
    "bank.ckpt out.ckpt --member nobody": "no member 'nobody'; it has plain, residual, full",
    "bank.ckpt out.ckpt --member plain": "found 'plain' (seed 0, plain SimplifiedNet). For T^-1 (plain -> residual) add",
    "bank.ckpt out.ckpt --member residual --inverse": "For T (residual -> plain) leave --inverse out",
    "bank.ckpt out.ckpt --member full": "no weight of 'full' (seed 0, residual CifarResNet) has ID entries, so T has",
    "full.ckpt out.ckpt": "only a skip around a single convolution",
    "plain.ckpt out.ckpt": "T needs a residual net with ID entries, found 'residual' (seed 0, plain SimplifiedNet)",
    "half.ckpt out.ckpt": "next to the 1 of an ID entry, everything below 0.0078125 would be rounded away",
}


@pytest.fixture(scope="module")
def shelf(bank, tmp_path_factory) -> Path:
    """A folder with one file for everything that can be wrong."""
    folder, checkpoint = tmp_path_factory.mktemp("shelf"), load(bank)
    members = {one["name"]: one for one in checkpoint["members"]}
    (folder / "text.ckpt").write_text("not a checkpoint")
    (folder / "torn.ckpt").write_bytes(bank.read_bytes()[:5000])
    files = {
        "bank": checkpoint,
        "tensor": torch.zeros(3),
        "weights": {"state_dict": checkpoint["state_dict"]},
        "older": {key: value for key, value in checkpoint.items() if key != "id_weights"},
        "full": checkpoint | {"members": [members["full"]]},
        "plain": checkpoint | {"members": [members["residual"] | {"residual": False}]},
        "half": checkpoint
        | {"state_dict": {name: weight.bfloat16() for name, weight in checkpoint["state_dict"].items()}},
    }
    for name, content in files.items():
        torch.save(content, folder / f"{name}.ckpt")
    return folder


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_gets_a_message_and_changes_nothing(words, shelf, monkeypatch, capsys):
    monkeypatch.chdir(shelf)
    before = {path.name: path.read_bytes() for path in shelf.iterdir()}
    assert main(["transfer", *shlex.split(words)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: ") and REFUSED[words] in said.err, said.err
    assert len(said.err.splitlines()) == 1 and not said.out
    assert {path.name: path.read_bytes() for path in shelf.iterdir()} == before


def test_nothing_in_a_checkpoint_is_executed(tmp_path, capsys):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    torch.save({"state_dict": {}, "trap": Trap()}, tmp_path / "trap.ckpt")
    assert main(["transfer", str(tmp_path / "trap.ckpt"), str(tmp_path / "out.ckpt")]) == 2
    assert "such as a pickled net, which is never executed" in capsys.readouterr().err
    assert not (tmp_path / "sprung").exists()


SMALL = (
    *("--data", "Digits", "--data.train_limit", "64", "--data.batch_size", "32", "--data.probe_size", "20"),
    *("--data.test_limit", "60", *LEARNING),
    *("--model.net.init_args.depth", "5", "--trainer.logger", "false"),
    *("--trainer.accelerator", "cpu", "--trainer.max_epochs", "2"),
)


def run(*words: str | Path, cwd: Path) -> str:
    done = command(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def options(kind: str) -> tuple[str, ...]:
    return ("--config", str(ROOT / "configs" / f"{kind}20.yaml"), *SMALL)


def numbers(said: str) -> dict[str, float]:
    """Member and name -> value, of what test prints."""
    lines = [line.split() for line in said.splitlines()]
    head = next(number for number, words in enumerate(lines) if words[:1] == ["net"] and "test/risk" in words)
    return {
        f"{member} {name}": float(value)
        for member, *values in lines[head + 1 :]
        for name, value in zip(lines[head][1:], values, strict=True)
    }


@pytest.mark.slow
def test_the_twin_has_the_same_risk_and_error_under_the_other_configuration(tmp_path):
    run("fit", *options("res"), cwd=tmp_path)
    own, twin = tmp_path / "runs" / "cifar10" / "res20" / "checkpoints" / "last.ckpt", tmp_path / "twin.ckpt"
    assert main(["transfer", str(own), str(twin)]) == 0
    expected = numbers(run("test", *options("res"), "--ckpt_path", own, cwd=tmp_path))
    found = numbers(run("test", *options("pln"), "--ckpt_path", twin, cwd=tmp_path))
    assert expected.keys() == {"net test/risk", "net test/error"} and found == pytest.approx(expected, rel=1e-5)
    unmoved = command("test", *options("pln"), "--ckpt_path", own, cwd=tmp_path)
    assert unmoved.returncode == 2 and "another architecture" in unmoved.stderr


@pytest.mark.slow
def test_both_ways_on_a_bank_by_the_command_line(tmp_path):
    run(*TINY, *LEARNING, cwd=tmp_path)
    own = Path("runs") / "digits" / "quickstart" / "checkpoints" / "last.ckpt"
    expected = numbers(run("test", *TINY[1:], "--ckpt_path", own, cwd=tmp_path))
    assert "residual: 64 ID entries" in run("transfer", own, "plain.ckpt", cwd=tmp_path)
    said = run("transfer", "--inverse", "--member", "residual", "plain.ckpt", "back.ckpt", cwd=tmp_path)
    assert "residual: 64 ID entries" in said and "\nplain" not in said
    both_plain = ("--model.arms.residual.net.init_args.residual", "false")
    for more, checkpoint in ((both_plain, "plain.ckpt"), ((), "back.ckpt")):
        found = numbers(run("test", *TINY[1:], *more, "--ckpt_path", checkpoint, cwd=tmp_path))
        assert found == pytest.approx(expected, rel=1e-5)
    refused = command("transfer", "plain.ckpt", "again.ckpt", cwd=tmp_path)
    assert refused.returncode == 2 and not (tmp_path / "again.ckpt").exists()
    assert re.match(r"error: T needs a residual net .* add --inverse\.\n$", refused.stderr)
