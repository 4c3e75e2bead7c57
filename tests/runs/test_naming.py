"""Which nets are seeds of one thing, by names and by configurations."""

import itertools

import pytest
import yaml

from lightning_app.report.page_data import gather
from lightning_app.report.pairs import pairs
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.folder import MemberRow
from lightning_app.runs.naming import _only_seed, _seed_in, parent_of, run_groups, without_seed
from lightning_app.runs.reader import read_runs


def config(
    seed: str | int = "0-0", residual: bool = True, depth: int = 20, lr: float = 0.1, name: str = "simplified"
) -> dict:
    net = {"class_path": "SimplifiedNet", "init_args": {"depth": depth, "residual": residual}}
    return {"model": {"net": net, "lr": lr, "seeds": seed}, "run": {"name": name, "group": "sweep"}, "ckpt_path": None}


@pytest.fixture
def leave(tmp_path):
    """leave("name", members, config, epochs): a run with little in it."""

    def leave(name: str, members=("net",), config: dict | None = None, epochs: int = 1) -> RunFolder:
        run = RunFolder(tmp_path / "runs" / name)
        run.append(Row(member, e, e, "train/risk", 2.3 / (1 + e)) for member in members for e in range(epochs + 1))
        if config is not None:
            (run.path / "config.yaml").write_text(yaml.safe_dump(config))
        return run

    return leave


@pytest.mark.parametrize(
    ("label", "without", "seed"),
    [
        ("plain-seed03", "plain", 3),
        ("fig2-seed7/residual", "fig2/residual", 7),
        ("fig2-seed0-6/residual-seed05", "fig2/residual", 5),
        ("seed_12/net", "net", 12),
        ("wide/seed3/net", "wide/net", 3),
        ("a-seeds0,3-4/net", "a/net", None),
        ("res20", "res20", None),
        ("reseeded", "reseeded", None),
        ("seed4", "", 4),
        ("res-seed3", "res", 3),
        ("linseed4", "linseed4", None),
        ("plainseed3", "plainseed3", None),
    ],
)
def test_names(label, without, seed):
    assert (without_seed(label), _seed_in(label)) == (without, seed)


@pytest.mark.parametrize(
    ("seeds", "only"),
    [(1, 0), ("7-7", 7), ("7", 7), ([4], 4), (3, None), ("0-6", None), (None, None), ("odd", None), ({}, None)],
)
def test_the_seed_a_configuration_says(seeds, only):
    assert _only_seed({"model": {"seeds": seeds}}) == only
    assert _only_seed({}) is None


def test_what_only_a_gpu_heeds_does_not_part_seeds_of_a_cpu(leave):
    runs = []
    for seed, asked in enumerate(("tf32", "fp32")):
        config = {"model": {"float32": asked, "lr": 0.1, "seeds": f"{seed}-{seed}"}}
        runs.append(leave(f"pair20~{seed}-{seed}", [f"plain-seed0{seed}"], config))
        runs[-1].add_made({"float32": "fp32", "device": "cpu"})
    ((name, nets),) = gather(runs).groups.items()
    assert (name, [net.seed for net in nets]) == ("pair20", [0, 1])


def test_runs_of_a_job_array_are_seeds(leave):
    runs = [leave(f"pair20-seed{i:02d}", ["plain", "residual"]) for i in (0, 1, 11)]
    groups = gather(runs).groups
    seeds = {group: [net.seed for net in nets] for group, nets in groups.items()}
    assert seeds == {arm: [0, 1, 11] for arm in ("plain", "residual")}
    assert [nets[0].kind for nets in groups.values()] == ["plain", "residual"]


@pytest.mark.parametrize(
    "names",
    [("fig2", "fig2~2"), ("fig2~0-1", "fig2~2-3"), ("fig2-seed0-1", "fig2-seed2-3"), ("fig2-seed00", "fig2-seed02")],
)
def test_seeds_in_several_banks_are_one_arm(leave, names):
    runs = [
        leave(name, [f"plain-seed{i:02d}" for i in seeds], config(f"{seeds[0]}-{seeds[1]}"))
        for name, seeds in zip(names, ((0, 1), (2, 3)))
    ]
    ((group, nets),) = gather(runs).groups.items()
    assert group == "plain"
    assert [net.seed for net in nets] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"a~0-1": ("net-seed00", "net-seed01"), "a~2-2": ("net",)}, {"net": 3}),
        ({"a~0-0": ("plain", "residual"), "a~1-1": ("plain",)}, {"plain": 2, "residual": 1}),
        ({"plain": ("plain", "residual"), "plain~2": ("residual",)}, {"plain": 1, "residual": 2}),
        ({"a~0-0": ("net",), "a~1-1": ("net",)}, {"a": 2}),
        ({"a~0-0": ("plain", "residual"), "b~0-0": ("plain",)}, {"a/plain": 1, "a/residual": 1, "b": 1}),
    ],
)
def test_arms_of_runs_of_one_name_go_without_it_also_where_a_run_has_one_net(leave, members, expected):
    runs = [leave(name, nets, config(f"{seed}-{seed}")) for seed, (name, nets) in enumerate(members.items())]
    for run, (_, nets) in zip(runs, members.items()):
        run.save_members(
            MemberRow(net, without_seed(net), 10 * runs.index(run) + n, "Net", None, "", 20, 1)
            for n, net in enumerate(nets)
        )
    assert {group: len(nets) for group, nets in gather(runs).groups.items()} == expected


def test_a_sweep_is_told_apart_by_what_it_varies(leave):
    grid = [(depth, residual, seed) for depth in (20, 32) for residual in (True, False) for seed in (0, 1)]
    names = ["simplified", *(f"simplified~{i}" for i in range(2, 9))]
    runs = [
        leave(name, config=config(f"{seed}-{seed}", residual, depth, name=name))
        for name, (depth, residual, seed) in zip(names, grid)
    ]
    groups = gather(runs).groups
    assert {group: [net.seed for net in nets] for group, nets in groups.items()} == {
        f"simplified (depth={depth}, {kind})": [0, 1] for depth in (20, 32) for kind in ("residual", "plain")
    }
    assert [nets[0].kind for nets in groups.values()] == ["residual", "plain"] * 2


def test_a_run_of_a_sweep_that_was_resumed_for_more_epochs_stays_with_its_seeds(leave):
    """It was an arm of its own, and as a fourth option that differs took the others' names: "simplified~3"."""
    grid = itertools.product((8, 14), (1, 2), (False, True), (0, 1))
    runs = []
    for number, (depth, lr, residual, seed) in enumerate(grid, 1):
        its = config(f"{seed}-{seed}", residual, depth, lr) | {"trainer": {"max_epochs": 1}}
        runs.append(leave("a" if number == 1 else f"a~{number}", config=its))
    before = (runs[2].path / "config.yaml").read_text()
    (runs[2].path / "config.before-resume-1.yaml").write_text(before)
    (runs[2].path / "config.yaml").write_text(before.replace("max_epochs: 1", "max_epochs: 9"))
    page = gather(runs)
    seeds = {group: [net.seed for net in nets] for group, nets in page.groups.items()}
    kinds = itertools.product((1, 2), (8, 14), ("plain", "residual"))
    assert seeds == {f"a (lr={lr}, depth={depth}, {kind})": [0, 1] for lr, depth, kind in kinds}
    assert [pair.seeds for pair in pairs(page)[0]] == [(0, 1)] * 4


def test_runs_of_one_name_that_cannot_be_compared_keep_apart(leave):
    assert len(gather([leave("res20", config=config()), leave("res20~2")]).groups) == 2


def test_too_many_differences_are_not_told_but_kept():
    configs = {"a": {"u": 1, "v": 1, "w": 1, "x": 1}, "a~2": {"u": 2, "v": 2, "w": 2, "x": 2}}
    assert run_groups(configs | {"a~3": configs["a"]}) == {"a": "a", "a~2": "a~2", "a~3": "a"}


def test_the_configuration_beats_a_folder_s_name(leave):
    net = gather([leave("res-seed03", config=config("7-7")), leave("other")]).nets[0]
    assert net.seed == 7


def test_a_run_within_another_one_and_that_one_have_names_and_a_page_of_both(leave):
    """They were "./net" and "measured/net", and their page took the place of the outer run's own."""
    outer, inner = leave("a"), leave("a/measured")
    assert [run.label for run in read_runs([outer, inner])] == ["a", "a/measured"]
    assert parent_of([outer.path, inner.path]) == outer.path.parent


def test_a_seed_trained_twice_counts_once_and_the_longer_one(leave):
    runs = [leave("res20-seed00", epochs=1), leave("res20-seed00~2", epochs=3), leave("res20-seed01")]
    for run in runs:
        (run.path / "config.yaml").write_text(yaml.safe_dump(config("1-1" if "seed01" in run.path.name else "0-0")))
    evidence = gather(runs)
    assert [net.label for net in evidence.groups["res20"]] == ["res20-seed00~2", "res20-seed01"]
    assert [net.label for net in evidence.repeats] == ["res20-seed00"]
    assert len(evidence.nets) == 3


def test_seeds_that_were_added_after_a_resume_are_of_the_arm_as_it_is_now(leave):
    """All were trained for 9 epochs: they were arms of 1 and of 9."""
    runs = []
    for number in range(4):
        run = leave(f"a~{number + 2}", config=config(f"{number}-{number}") | {"trainer": {"max_epochs": 9}})
        before = config(f"{number}-{number}") | {"trainer": {"max_epochs": 1}}
        if number < 2:
            (run.path / "config.before-resume-1.yaml").write_text(yaml.safe_dump(before))
        runs.append(run)
    assert {group: len(nets) for group, nets in gather(runs).groups.items()} == {"a": 4}


def test_a_seed_of_a_job_array_trained_again_otherwise_takes_the_first_of_it_not_out_of_its_arm(leave):
    """The first was an arm of its own, "res20 (lr=0.1)", and in no pair."""
    names = {"pln20-seed0": 0.1, "pln20-seed1": 0.1, "res20-seed0": 0.1, "res20-seed1": 0.1, "res20-seed1~2": 0.2}
    for name, lr in names.items():
        leave(name, config=config(f"{name[10]}-{name[10]}", name.startswith("res"), lr=lr))
    page = gather([leave(name) for name in names])
    seeds = {group: [net.seed for net in nets] for group, nets in page.groups.items()}
    assert seeds == {"pln20": [0, 1], "res20 (lr=0.1)": [0, 1], "res20 (lr=0.2)": [1]}
    assert [(pair.label, pair.seeds) for pair in pairs(page)[0]] == [("pln20 − res20 (lr=0.1)", (0, 1))]


def test_banks_trained_in_different_places_are_one():
    here = {"model": {"lr": 1, "seeds": "0-6"}, "trainer": {"strategy": "auto", "devices": "auto"}}
    there = {"model": {"lr": 1, "seeds": "7-12", "backend": "loop", "compile": True}, "save_checkpoint": {"x": 1}}
    there["trainer"] = {"strategy": "seeds", "devices": 2, "accelerator": "gpu"}
    assert run_groups({"fig2": here, "fig2~2": there}) == {"fig2": "fig2", "fig2~2": "fig2"}
