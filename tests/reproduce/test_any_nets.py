"""Claims of the nets of any runs, as the page shows them: what is not the paper's net is shown and not tested."""

from pathlib import Path

import pytest
import yaml

from lightning_app.papers.littwin_wolf.training import EPOCHS, NORMALISED, runs_of
from lightning_app.papers.parts import PAPER, SMOKE
from lightning_app.papers.verdicts import Class, Verdict
from lightning_app.papers.yu_tomasi.nets import SEED_RUNS
from lightning_app.report import claims
from lightning_app.report.page_data import gather
from lightning_app.runs import find_runs
from tests.reproduce.test_yu_tomasi import DEPTHS, table_1_numbers, table_3_numbers


@pytest.fixture
def page(tmp_path):
    """(claim, reading) -> the row of the page's first section, as texts by column."""

    def page(root: Path = tmp_path / "runs") -> dict[tuple[str, str], dict[str, str]]:
        rows = {}
        for table in claims.section(gather(find_runs([root]))).blocks:
            quantity = ""
            for row in table.rows:
                texts = dict(zip(table.head, (cell.text for cell in row), strict=True))
                quantity = texts["claim"] if texts["claim"] != "″" else quantity
                rows[quantity, texts["reading"]] = texts
        return rows

    return page


def verdicts(rows: dict) -> dict[str, str]:
    return {quantity: row["verdict"] for (quantity, _), row in rows.items() if row["verdict"]}


def agreeing(rows: dict, made: dict[str, str]) -> set[str]:
    """The claims that both have, after checking that their verdicts are the same."""
    found = verdicts(rows)
    both = found.keys() & made.keys()
    assert {quantity: found[quantity] for quantity in both} == {quantity: made[quantity] for quantity in both}
    return both


@pytest.mark.parametrize("missed", [None, "plain44"])
def test_table_1_as_reproduce_says(leave, made, page, missed):
    for name, depth in DEPTHS.items():
        leave(SEED_RUNS[name], table_1_numbers(depth, factor=2.0 if name == missed else 1.0))
    rows = page()
    assert len(agreeing(rows, made("table-1"))) == 18 + 2 + 6 + 2
    failed = {quantity for quantity, verdict in verdicts(rows).items() if verdict == Verdict.NOT_REPRODUCED}
    assert bool(failed) == (missed is not None)


def test_readings_stand_side_by_side(leave, page):
    leave(SEED_RUNS["depth20"], table_1_numbers(20))
    rows = page()
    readings = ("C as printed: penalty / 128", "C as trained")
    printed, trained = (rows["L / (C - L), plain, depth 20", words] for words in readings)
    assert (printed["verdict"], printed["why"]) == (Verdict.ARTEFACT, f"true only under: {readings[0]}")
    assert float(printed["ours"].split(" ± ")[0]) == pytest.approx(0.07227 / 0.00077, rel=1e-3)
    assert float(trained["ours"].split(" ± ")[0]) == pytest.approx(0.07227 / 0.00077 / 128, rel=1e-3)
    assert trained["verdict"] == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epochs": (0, 12), "finished": False}, "epoch 12 of 200"),
        ({"seeds": (0, 1)}, "2 of 3 seeds"),
        ({"scale": SMOKE}, "train_limit is 512, the paper’s not set"),
    ],
)
def test_what_falls_short_is_not_tested_and_shown(leave, page, change, reason):
    leave(SEED_RUNS["depth20"], table_1_numbers(20), **change)
    rows = page()
    assert set(verdicts(rows).values()) == {Verdict.NOT_TESTED}
    row = rows["L, plain, depth 20", ""]
    assert row["why"] == reason
    assert float(row["ours"].split(" ± ")[0]) == pytest.approx(0.07227, rel=0.03)


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("data", "class_path"), "lightning_app.datamodules.Digits", "data is Digits, the paper’s CIFAR10"),
        (("model", "optimizer", "init_args", "lr"), 0.1, "lr is 0.1, the paper’s 0.01"),
        (("data", "init_args", "batch_size"), 32, "batch_size is 32, the paper’s 128"),
        (("data", "init_args", "val_size"), 5000, "val_size is 5000, the paper’s 0"),
        (("model", "optimizer", "class_path"), "torch.optim.Adam", "optimizer is Adam, the paper’s SGD"),
        (("model", "scheduler", "init_args", "milestones"), [80, 160], "milestones is 80, the paper’s 120"),
        (("model", "arms", "residual", "net", "init_args", "width"), 64, "width is 64, the paper’s 16"),
    ],
)
def test_another_recipe_is_not_the_paper_s(leave, page, keys, value, reason):
    run = leave(SEED_RUNS["depth20"], table_1_numbers(20))
    config = run.config()
    place = config
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (run.path / "config.yaml").write_text(yaml.safe_dump(config))
    assert page()["E, residual, depth 20", ""]["why"] == reason


def test_every_seed_has_to_have_the_paper_s_recipe(leave, page):
    """Runs that are called alike but for the seed need not be alike."""
    run, numbers = SEED_RUNS["depth20"], table_1_numbers(20)
    runs = [leave(run, numbers, seeds=(seed,), name=f"d20-seed{seed:02d}") for seed in range(3)]
    assert verdicts(page())["E, residual, depth 20"] == Verdict.REPRODUCED
    config = runs[1].config()
    config["model"]["optimizer"]["init_args"]["lr"] = 0.1
    (runs[1].path / "config.yaml").write_text(yaml.safe_dump(config))
    assert set(verdicts(page()).values()) == {Verdict.NOT_TESTED}


def test_whether_there_is_a_normalisation_has_to_be_known(leave, page):
    """Depth alone does not tell: BnLambda may not have looked."""
    run = runs_of(NORMALISED)[0]
    lengths = {"depth/effective": 3.0, "depth/longest": 10.0}
    leave(run, lambda *_: lengths, PAPER, (0, EPOCHS), paper="littwin-wolf")
    assert not any("without normalisation" in quantity for quantity in verdicts(page()))


@pytest.mark.parametrize(
    ("slopes", "verdict"),
    [((0.01, 0.01), Verdict.REPRODUCED), ((0.01, -0.01), Verdict.DEPENDS), ((-0.01, -0.01), Verdict.NOT_REPRODUCED)],
)
def test_settings_that_the_paper_leaves_open_are_readings(leave, made, page, slopes, verdict):
    """|lambda| grows in some settings, or in all, or in none; the depth of paths likewise."""
    for slope, run in zip(slopes, runs_of(NORMALISED)[:2], strict=True):

        def numbers(arm: str, seed: int, epoch: int, slope=slope) -> dict[str, float]:
            grown = epoch * slope * (1 + seed / 10)
            lambdas = {f"bn_lambda/layer{n:02d}/mean_abs": 1 + (grown if n > 1 else 0) for n in range(1, 11)}
            depths = {f"depth/{field}": 3 + 10 * grown for field in ("effective", "coherent", "gradient")}
            return lambdas | depths | {"depth/longest": 10.0, "bn_lambda/l2": 1.0}

        leave(run, numbers, PAPER, (0, EPOCHS), paper="littwin-wolf")
    found = verdicts(page())
    assert found["mean |λ| of all layers but the first: end minus start"] == verdict
    assert found["d_eff / p with normalisation: end minus start"] == verdict
    assert found["d_eff / p with normalisation: at initialisation"] == Verdict.REPRODUCED


def test_counts_are_by_class_and_words_are_explained(leave, tmp_path):
    leave(SEED_RUNS["depth20"], table_1_numbers(20))
    lengths = {"depth/effective": 3.0, "depth/longest": 10.0, "bn_lambda/l2": 1.0}
    leave(runs_of(NORMALISED)[0], lambda *_: lengths, PAPER, (0, EPOCHS), paper="littwin-wolf")
    section = claims.section(gather(find_runs([tmp_path / "runs"])))
    assert section.lead.startswith("initialisation: 1 reproduced; trained: ")
    assert all(word.lower() in section.lead.lower() for word in list(Verdict)[:8])


def test_every_claim_of_the_page_says_what_it_is_about(leave, tmp_path):
    leave(SEED_RUNS["depth20"], table_1_numbers(20))
    leave(SEED_RUNS["depth32"], table_3_numbers())
    found = claims._found(gather(find_runs([tmp_path / "runs"])))
    assert {claim.about for _, claim in found} == {Class.TRAINED}


@pytest.mark.parametrize(("scale", "judged"), [(PAPER, True), (SMOKE, False)])
def test_claims_without_a_verdict_are_one_line(leave, tmp_path, scale, judged):
    leave(SEED_RUNS["depth20"], table_1_numbers(20), scale=scale)
    section = claims.section(gather(find_runs([tmp_path / "runs"])))
    full, lines = ([table for table in section.blocks if bool(table.folded) == folded] for folded in (False, True))
    assert bool(full) == bool(section.lead) == judged
    assert not {"not tested", "described"} & {row[4].text for table in full for row in table.rows}
    for line in lines:
        others = {row[0].text for row in line.rows} - {"″"}
        assert line.folded.startswith(f"{len(others)} claims about other nets")
        assert {row[4].text for row in line.rows} <= {"not tested", "described", ""}
    assert judged or len(lines) == 1
