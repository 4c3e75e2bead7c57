"""What a run records of its nets, and what is made of it: arm, seed, plain or residual are looked up, not read off names."""

import csv
from typing import NamedTuple

import pytest
import pytorch_lightning as pl
import torch
import yaml
from torch import nn

from lightning_app.common.errors import UserError
from lightning_app.modules import ImageClassifier
from lightning_app.modules.members import Arm
from lightning_app.networks import SimplifiedNet
from lightning_app.report.page_data import PageData, gather
from lightning_app.report.pairs import pairs
from lightning_app.runs import MemberRow, Row, Run, RunFolder
from lightning_app.runs.loggers import RunLogger

LINEAR = MemberRow("net", "", None, "torch.nn.modules.linear.Linear", None, "", None, 9)
PATH = "lightning_app.networks.simplified.SimplifiedNet"


def arm(residual: bool, depth: int = 5) -> Arm:
    return Arm(lambda: SimplifiedNet(depth, residual=residual, width=4))


def bank(arms: dict[str, Arm], seeds: int = 1) -> ImageClassifier:
    return ImageClassifier(lambda parameters: torch.optim.SGD(parameters, 0.1), arms=arms, seeds=seeds)


def leave(folder: RunFolder, members, config: dict | None = None) -> PageData:
    """A page's evidence on a run that has logged one number of each member."""
    folder.append(Row(member, 1, 1, "test/error", 0.5) for member in members)
    if config is not None:
        (folder.path / "config.yaml").write_text(yaml.safe_dump(config))
    return gather([folder])


def specs(**residual: bool) -> dict:
    """The configuration of arms that differ in that only."""
    arms = {
        name: {"net": {"class_path": "SimplifiedNet", "init_args": {"depth": 20, "residual": value}}}
        for name, value in residual.items()
    }
    return {"model": {"arms": arms, "seeds": 2}, "data": {"class_path": "CIFAR10"}}


def names(arms, seeds: int = 2) -> list[str]:
    return [f"{arm}-seed{seed:02d}" for arm in arms for seed in range(seeds)]


def sides(evidence: PageData) -> list[tuple[set[str], set[str]]]:
    """Which arms are subtracted from which."""
    found, _ = pairs(evidence)
    return [({net.arm for net in pair.residual}, {net.arm for net in pair.plain}) for pair in found]


def test_a_run_records_its_nets(tmp_path):
    """Lightning hands every logger the module as a run starts: that is when it is written."""
    model = bank({"stress": arm(False), "r": arm(True), "twin": Arm(twin_of="r")}, seeds=2)
    RunLogger(tmp_path).log_graph(model)
    size = sum(parameter.numel() for parameter in model.members[0].net.parameters())
    with (tmp_path / "members.csv").open() as file:
        rows = [*csv.reader(file)]
    assert rows[0] == ["name", "arm", "seed", "class_path", "residual", "twin_of", "depth", "parameters"]
    arms = (("stress", "false", ""), ("r", "true", ""), ("twin", "false", "r-seed0{}"))
    assert rows[1:] == [
        [f"{name}-seed0{seed}", name, str(seed), PATH, residual, original.format(seed), "5", str(size)]
        for name, residual, original in arms
        for seed in (0, 1)
    ]


class Foreign(pl.LightningModule):
    """Somebody else's: one child with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(2, 3)


class Lazy(Foreign):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.LazyLinear(3)


def test_of_somebody_else_s_net_class_and_size_are_known(tmp_path):
    RunLogger(tmp_path).log_graph(Foreign())
    assert RunFolder(tmp_path).members() == [LINEAR]
    RunLogger(tmp_path / "lazy").log_graph(Lazy())
    assert RunFolder(tmp_path / "lazy").members()[0].parameters is None


def test_a_module_that_does_not_name_its_nets_can_still_be_trained(tmp_path):
    RunLogger(tmp_path).log_graph(pl.LightningModule())
    assert RunFolder(tmp_path).members() == []


class Theirs(NamedTuple):
    """A pair by what it iterates as; its attributes mean something else."""

    name: str
    net: nn.Module
    arm = 3
    seed = True
    twin_of = nn.Identity()


def test_attributes_of_another_meaning_are_not_recorded(tmp_path):
    model = Foreign()
    model.members = [Theirs("a", nn.Linear(2, 3))]
    for _ in range(2):  # the second reads what the first has written, as a resume does
        RunLogger(tmp_path).log_graph(model)
    assert RunFolder(tmp_path).members() == [LINEAR._replace(name="a")]
    assert not (tmp_path / "damaged-members.csv").exists()


class Failing(Foreign):
    @property
    def members(self):
        raise RuntimeError("not before setup()")


def test_members_that_cannot_be_read_do_not_stop_training(tmp_path, caplog):
    RunLogger(tmp_path).log_graph(Failing())
    assert RunFolder(tmp_path).members() == []
    assert "Failing.members cannot be read (RuntimeError: not before setup()): training goes on" in caplog.text


def test_a_resumed_run_keeps_what_was_recorded(tmp_path):
    folder = RunFolder(tmp_path)
    earlier, now = MemberRow("a", "a", 0, "A", True, "", 3, 4), MemberRow("b", "", None, "B", None, "", None, None)
    folder.save_members([earlier])
    folder.save_members([now])
    folder.begin()
    assert folder.members() == [earlier, now]


@pytest.mark.parametrize(
    "text", ["", "name,arm\n", "{head}\na,b,0,C,maybe,,,\n", "{head}\na,b,x,C,true,,,\n", "{head}\na\n"]
)
def test_a_damaged_list_is_refused_and_the_page_goes_on_without(tmp_path, text):
    from lightning_app.report.sections.configs import section

    folder = RunFolder(tmp_path)
    (tmp_path / "members.csv").write_text(text.format(head=",".join(MemberRow._fields)))
    evidence = leave(folder, ["plain"])
    with pytest.raises(UserError, match=r"members\.csv is not a list of members .* remove it"):
        folder.members()
    run = Run(folder)
    assert [net.residual for net in run.nets] == [False] and "members.csv" in run.damage[0]
    assert [net.residual for net in evidence.nets] == [False]
    assert any(said.startswith("Left out, ") and "members.csv" in said for said in section(evidence).notices)


@pytest.mark.parametrize("recorded", [True, False], ids=["members.csv", "configuration"])
def test_an_arm_is_what_it_was_built_as_and_not_what_it_is_called(tmp_path, recorded):
    built = {"stress": False, "explained": True, "preset_a": False, "plain": True, "residual": False}
    if recorded:
        RunLogger(tmp_path).log_graph(bank({name: arm(residual) for name, residual in built.items()}, seeds=2))
    evidence = leave(RunFolder(tmp_path), names(built), None if recorded else specs(**built))
    assert {net.arm: net.residual for net in evidence.nets} == built
    found = [(net.name, net.arm, net.seed) for net in evidence.nets[:2]]
    assert found == [("stress-seed00", "stress", 0), ("stress-seed01", "stress", 1)]
    assert not any(net.guessed for net in evidence.nets)


def their_rows(*arms: str, depth: int | None = None) -> list[MemberRow]:
    """As of nets whose class has no attribute `residual`."""
    return [MemberRow(name, name[:-7], int(name[-2:]), "their.Net", None, "", depth, 9) for name in names(arms)]


def test_of_a_net_without_an_attribute_the_configuration_says_whether_it_is_residual(tmp_path):
    config = specs(a=False, b=True)
    for arm in config["model"]["arms"].values():
        arm["net"]["class_path"] = "their.Net"
    RunFolder(tmp_path).save_members(their_rows("a", "b"))
    evidence = leave(RunFolder(tmp_path), names(["a", "b"]), config)
    found = [(net.residual, net.depth, net.parameters, net.guessed) for net in evidence.firsts()]
    assert found == [(False, 20, 9, False), (True, 20, 9, False)]
    assert sides(evidence) == [({"b"}, {"a"})]


def test_of_a_net_without_either_names_are_guessed_from(tmp_path):
    RunFolder(tmp_path).save_members(their_rows("plain", "residual", "c", depth=9))
    evidence = leave(RunFolder(tmp_path), names(["plain", "residual", "c"]))
    found = [(net.residual, net.depth, net.guessed) for net in evidence.firsts()]
    assert found == [(False, 9, True), (True, 9, True), (None, 9, False)]
    assert sides(evidence) == [({"residual"}, {"plain"})]


def test_a_twin_is_known_from_the_configuration_too(tmp_path):
    config = specs(r=True)
    config["model"]["arms"]["t"] = {"twin_of": "r"}
    nets = leave(RunFolder(tmp_path), names(["r", "t"]), config).nets
    found = [(net.name, net.twin_of, net.residual) for net in nets[1:3]]
    assert found == [("r-seed01", "", True), ("t-seed00", "r-seed00", False)]


@pytest.mark.parametrize("depth", [[2, 2], "18", True, None])
def test_an_argument_of_that_name_need_not_be_a_depth(tmp_path, depth):
    """The page counts depths, and keeps nets in dicts."""
    config = {"model": {"net": {"class_path": "my.Net", "init_args": {"depth": depth}}}}
    (net,) = leave(RunFolder(tmp_path), ["net"], config).nets
    assert net.depth is None and net in {net: 0}


def test_without_either_names_are_guessed_from_and_the_page_says_so(tmp_path):
    from lightning_app.report.sections.configs import section

    evidence = leave(RunFolder(tmp_path), ["compressed-plain", "res20", "stress", "explained"])
    assert [net.residual for net in evidence.nets] == [False, True, None, None]
    (said,) = (notice for notice in section(evidence).notices if "guessed from names" in notice)
    assert said.endswith("compressed-plain, res20.")


def test_arms_that_differ_in_residual_only_are_a_pair_whatever_they_are_called(tmp_path):
    config = specs(preset_plain=False, preset_residual=True, stress=False, explained=True)
    for name in ("stress", "explained"):
        config["model"]["arms"][name]["net"]["init_args"]["depth"] = 32
    evidence = leave(RunFolder(tmp_path), names(config["model"]["arms"]), config)
    assert sides(evidence) == [({"preset_residual"}, {"preset_plain"}), ({"explained"}, {"stress"})]


def test_names_only_decide_between_arms_that_are_configured_alike(tmp_path):
    config = specs(plain=False, plain_b=False, residual=True, residual_b=True)
    evidence = leave(RunFolder(tmp_path), names(config["model"]["arms"]), config)
    assert sides(evidence) == [({"residual"}, {"plain"}), ({"residual_b"}, {"plain_b"})]
    config = specs(a=False, b=False, c=True)
    evidence = leave(RunFolder(tmp_path / "open"), names(config["model"]["arms"]), config)
    assert pairs(evidence)[1] == [
        "Not paired: neither configurations nor names say which of a and b belongs to which of c."
    ]


def test_a_twin_stands_for_its_arm_where_that_has_no_net_of_its_own(tmp_path):
    config = specs(residual=True)
    config["model"]["arms"]["t"] = {"twin_of": "residual"}
    assert sides(leave(RunFolder(tmp_path / "a"), names(["residual", "t"]), config)) == [({"residual"}, {"t"})]
    config["model"]["arms"] |= specs(own=False)["model"]["arms"]
    assert sides(leave(RunFolder(tmp_path / "b"), names(["residual", "t", "own"]), config)) == [({"residual"}, {"own"})]


def labels(*runs: RunFolder) -> list[str]:
    return [pair.label for pair in pairs(gather(runs))[0]]


def test_single_runs_are_paired_by_their_configurations(tmp_path):
    def run(name: str, residual: bool, lr: float, depth: int = 20, path: str = "SimplifiedNet", **data) -> RunFolder:
        net = {"class_path": path, "init_args": {"depth": depth, "residual": residual}}
        folder = RunFolder(tmp_path / name)
        its_data = {"class_path": "CIFAR10", "init_args": data}
        leave(folder, names(["net"]), {"model": {"net": net, "lr": lr, "seeds": 2}, "data": its_data})
        return folder

    slow = run("plain_slow", False, 0.01, depth=44), run("r44", True, 0.1, depth=44)  # as in Table 1
    usual = run("one", False, 0.1), run("two", True, 0.1), run("res20_fast", True, 0.5)
    found, notices = pairs(gather([*slow, *usual]))
    assert [pair.label for pair in found] == ["plain_slow/net − r44/net", "one/net − two/net"]
    assert notices == ["res20_fast/net: no plain counterpart."]
    spelled_out = run("three", True, 0.1, path="lightning_app.networks.SimplifiedNet")
    assert labels(usual[0], spelled_out) == ["one/net − three/net"]
    measured_otherwise = run("p1", False, 0.1, probe_size=100), run("r1", True, 0.1, probe_size=1000)
    assert labels(*measured_otherwise) == ["p1/net − r1/net"]
    older, newer = run("p2", False, 0.1, padding=4), run("r2", True, 0.1, padding=4, flip=True)
    assert labels(older, newer) == ["p2/net − r2/net"]
    assert labels(older, run("r3", True, 0.1, padding=2)) == []
    # what lacks an option agrees with two nets that do not agree: these are no pair for that
    newer_plain = run("p4", False, 0.1, padding=4, flip=False)
    assert labels(newer_plain, newer) == []
    assert labels(older, newer_plain, newer, run("r4", True, 0.1, padding=4, flip=False)) == ["p4/net − r4/net"]
    # of several that agree those with the very same options belong together
    assert labels(older, newer, run("p5", False, 0.1, padding=4, flip=True)) == ["p5/net − r2/net"]


def test_nets_of_another_module_pair_by_class_in_one_run_and_by_name_across_runs(tmp_path):
    def record(folder: RunFolder, **residual: bool) -> RunFolder:
        folder.save_members(MemberRow(name, "", 0, "their.Net", value, "", 9, 4) for name, value in residual.items())
        leave(folder, residual)
        return folder

    found, _ = pairs(gather([record(RunFolder(tmp_path / "both"), a=True, b=False)]), least=1)
    assert [(pair.plain[0].name, pair.residual[0].name) for pair in found] == [("b", "a")]
    apart = [record(RunFolder(tmp_path / name), net=name == "res8") for name in ("res8", "pln8", "pln9")]
    found, notices = pairs(gather(apart), least=1)
    assert [pair.label for pair in found] == ["pln8 − res8"] and notices[-1] == "pln9: no residual counterpart."
