"""The findings at the top of the page: their numbers are those of `compare`, and none is claimed that was not tested."""

import math
import re

import numpy as np
import pytest
import yaml

from lightning_app.common.numbers import brief
from lightning_app.compare.findings import judged
from lightning_app.report import summary
from lightning_app.report.page import sections_of
from lightning_app.report.page_data import gather
from lightning_app.report.sections import first
from lightning_app.runs import Row, RunFolder
from lightning_app.runs.folder import MemberRow
from lightning_app.statistics.sequential import confidence_sequence
from tests.report.test_page import Page, page_of

EPOCHS = 10
PLAIN = {"plain": False, "residual": True}
RNG = np.random.default_rng(0)
NOISE = RNG.normal(0, 0.001, 13)
ERRORS = ("plain", 0.3), ("residual", 0.2)


def run_of(path, arms: dict[str, dict[str, np.ndarray]], config: dict | None = None) -> RunFolder:
    """Arms with final numbers, a seed each; the risk halves in every `pace` epochs, and 2 at the start."""
    run = RunFolder(path)
    seeds = range(len(next(iter(next(iter(arms.values())).values()))))
    names = {f"{arm}-seed{seed:02d}": (arm, seed) for arm in arms for seed in seeds}
    run.save_members(
        MemberRow(name, arm, seed, "Net", PLAIN.get(arm), "", 20, 1) for name, (arm, seed) in names.items()
    )
    for name, (arm, seed) in names.items():
        numbers = {key: float(values[seed]) for key, values in arms[arm].items()}
        if pace := numbers.pop("pace", None):
            run.append(Row(name, epoch, epoch, "train/risk", 2 * 0.5 ** (epoch / pace)) for epoch in range(EPOCHS + 1))
        run.append(Row(name, EPOCHS, EPOCHS, key, value) for key, value in numbers.items())
    (path / "config.yaml").write_text(yaml.safe_dump(config or {"model": {"arms": {arm: {} for arm in arms}}}))
    return run


def said(*runs: RunFolder) -> list[str]:
    found = first.section(gather(runs), ())
    return [cell.text for block in found.blocks for cell in block.sentences]


def notices(*runs: RunFolder) -> str:
    return " ".join(first.section(gather(runs), ()).notices)


def numbers_in(sentence: str) -> list[str]:
    return re.search(r"([\d.e-]+) \[(-?[\d.e-]+), (-?[\d.e-]+)\]", sentence).groups()


@pytest.fixture
def bank(tmp_path) -> RunFolder:
    """Residual nets are faster and better; the curvature is the same but for 2 %, and no seed's test risk is known."""
    plain = {"pace": 3 + 100 * NOISE, "test/error": 0.3 + NOISE, "hessian/top1": 50 + 1000 * NOISE}
    residual = {"pace": 2 + 0 * NOISE, "test/error": 0.28 - NOISE, "hessian/top1": 51 + 1000 * NOISE[::-1]}
    both = {arm: numbers | {"hessian/unconverged": 0 * NOISE} for arm, numbers in zip(PLAIN, (plain, residual))}
    return run_of(tmp_path / "bank", both)


def test_effects_intervals_and_verdicts_are_those_of_the_tests(bank):
    error, epochs, curvature = said(bank)
    alpha = 0.05 / 4  # the error at equal training risk is asked for too, and these nets give no answer
    # Halving every `pace` epochs is linear in the logarithm; between epochs the curve is linear: a slow witness by search.
    level = float(re.search(r"risk ([\d.]+) after", epochs)[1])
    reached_by_all = 2 * 0.5 ** (EPOCHS / (3 + 100 * NOISE.max()))
    assert level == min(each for each in (0.1, 0.2, 0.5, 1.0) if each >= reached_by_all)  # the lowest round one

    def reached(pace: float) -> float:
        fine = np.linspace(0, EPOCHS, 1_000_001)
        curve = np.interp(fine, range(EPOCHS + 1), [2 * 0.5 ** (epoch / pace) for epoch in range(EPOCHS + 1)])
        return fine[np.argmax(curve <= level)]

    fewer = confidence_sequence([reached(3 + 100 * noise) - reached(2) for noise in NOISE], alpha)
    lower = confidence_sequence((0.3 + NOISE) - (0.28 - NOISE), alpha)
    ratio = np.log(51 + 1000 * NOISE[::-1]) - np.log(50 + 1000 * NOISE)
    times = confidence_sequence(ratio, alpha)
    for sentence, expected in zip((epochs, error), (fewer, lower)):
        ends = [float(end) for end in numbers_in(sentence)]
        assert ends == pytest.approx([expected.mean, expected.low, expected.high], rel=6e-3)
    assert [*numbers_in(curvature)] == [brief(math.exp(end), 3) for end in (times.mean, times.low, times.high)]
    assert epochs.startswith("residual reaches training risk") and epochs.endswith(
        "fewer epochs than plain (13 pairs)."
    )
    assert error.startswith("After epoch 10 residual has a test error 0.0")
    assert error.endswith("below that of plain (13 pairs).")
    assert curvature.startswith("After epoch 10 residual has a largest eigenvalue of the Hessian 1.0")
    assert curvature.endswith("times that of plain (13 pairs; equivalent within 10 %).")
    assert first.OF_RATIOS in first.section(gather([bank]), ()).blocks[0].caption  # there `compare` finds other numbers


def test_what_noise_explains_is_unresolved(tmp_path):
    run = run_of(tmp_path / "run", {"a": {"test/error": 0.3 + NOISE}, "b": {"test/error": 0.3 + NOISE[::-1]}})
    (sentence,) = said(run)
    assert sentence.endswith("of a (13 pairs; unresolved).")
    _, low, high = map(float, numbers_in(sentence))
    assert low < 0 < high


@pytest.mark.parametrize("pairs", [1, 2, 6])
def test_too_few_pairs_are_described_and_it_says_so(tmp_path, pairs):
    arms = {arm: {"test/error": error + NOISE[:pairs]} for arm, error in (("plain", 0.3), ("residual", 0.2))}
    run = run_of(tmp_path / "run", arms)
    (sentence,) = said(run)
    counted = "1 pair" if pairs == 1 else f"{pairs} pairs"
    assert sentence == f"After epoch 10 residual has a test error 0.1 below that of plain ({counted}, too few to test)."
    caption = first.section(gather([run]), ()).blocks[0].caption
    assert "To settle this question takes 7 pairs or more" in caption and first.OF_RATIOS not in caption


def test_nets_that_were_not_trained_are_compared_before_training_and_it_says_so(tmp_path):
    """As the evidence of a paper has them: some seeds trained, others only drawn."""
    arms = {arm: {"test/error": error + NOISE[:2]} for arm, error in (("plain", 0.3), ("residual", 0.2))}
    run = run_of(tmp_path / "run", arms)
    run.save_members(MemberRow(f"{arm}-seed02", arm, 2, "Net", PLAIN.get(arm), "", 20, 1) for arm in arms)
    run.append(Row(f"{arm}-seed0{seed}", 0, 0, "test/error", 0.9) for arm in arms for seed in range(3))
    (sentence,) = said(run)
    when = "Before training (the last at which all nets have this number)"
    assert sentence.startswith(f"{when} residual has a test error as large as that of plain: they are equal (3 pairs")


def test_equal_numbers_are_said_to_be_equal(tmp_path):
    numbers = {"pace": 2 + NOISE[:2], "train/error": 0.5 + NOISE[:2], "hessian/top1": 50 + NOISE[:2]}
    arms = {arm: numbers | {"hessian/unconverged": 0 * NOISE[:2]} for arm in PLAIN}
    counted = "plain: they are equal (2 pairs, too few to test)."
    epochs, curvature, error = said(run_of(tmp_path / "run", arms))
    assert epochs.startswith("residual reaches training risk") and epochs.endswith(f"after as many epochs as {counted}")
    assert curvature == f"After epoch 10 residual has a largest eigenvalue of the Hessian as large as that of {counted}"
    assert error == f"After epoch 10 residual has a training error as large as that of {counted}"


def test_where_there_are_validation_data_only_their_error_is_asked_for(tmp_path):
    arms = {"plain": {"val/error": 0.3 + NOISE}, "residual": {"val/error": 0.2 + NOISE}}
    (sentence,) = said(run_of(tmp_path / "val", arms))
    assert sentence.startswith("After epoch 10 residual has a validation error 0.1 ")
    run = run_of(tmp_path / "at-risk", {arm: numbers | {"train/risk": 0.5 + NOISE} for arm, numbers in arms.items()})
    before = {"train/risk": 2.0, "val/error": 0.9}
    run.append(Row(net.name, 0, 0, key, value) for net in gather([run]).nets for key, value in before.items())
    (at_risk,) = (sentence for sentence in said(run) if sentence.startswith("At training risk"))
    assert " has a validation error 0.0" in at_risk
    both = {arm: numbers | {"test/error": numbers["val/error"]} for arm, numbers in arms.items()}
    (sentence,) = said(run_of(tmp_path / "both", both))
    assert " has a test error 0.1 " in sentence


@pytest.mark.parametrize("factor", [1, 2])
def test_the_identity_is_named_where_it_makes_another_cushion(tmp_path, factor):
    def cushions(size: float, factor: int = 1) -> dict:
        name = "cushion/layer10/median"
        return {name: size * factor + NOISE, f"{name}_transferred": size + NOISE}

    (sentence,) = said(run_of(tmp_path / "run", {"plain": cushions(0.3), "residual": cushions(0.2, factor)}))
    assert ("(the identity counted as weights)" in sentence) == (factor == 2)
    assert "residual has a median cushion at layer10" in sentence


def test_seven_pairs_settle_one_question_but_not_two(tmp_path):
    arms = {arm: {"test/error": error + 0 * NOISE[:7]} for arm, error in (("a", 0.3), ("b", 0.2), ("c", 0.25))}
    assert all("too few to test" in sentence for sentence in said(run_of(tmp_path / "three", arms)))
    arms.pop("c")
    assert said(run_of(tmp_path / "two", arms))[0].endswith("a test error 0.1 [0.1, 0.1] below that of a (7 pairs).")


def test_all_arms_are_against_the_plain_one_else_the_first(tmp_path):
    def of(*arms: str) -> list[str]:
        found = said(
            run_of(tmp_path / str(len(arms)) / arms[0][:2], {arm: {"test/error": 0.3 + NOISE[:1]} for arm in arms})
        )
        return [re.sub(r".* (\w+) has.*that of (\w+)\W.*", r"\1 \2", sentence) for sentence in found]

    assert of("wide", "deep", "flat") == ["deep wide", "flat wide"]
    assert of("broad", "plain", "residual") == ["broad plain", "residual plain"]
    assert of("alone") == []


def test_each_residual_arm_is_against_its_own_plain_one(tmp_path):
    arms = ("pln20", "res20", "pln32", "res32")
    run = run_of(tmp_path / "depths", {arm: {"test/error": 0.3 + NOISE[:1]} for arm in arms})
    assert [re.search(r"(\w+) has .* of (\w+)\W", s).groups() for s in said(run)] == [
        ("res20", "pln20"),
        ("res32", "pln32"),
    ]


def test_there_are_seven_sentences_at_most(tmp_path):
    arms = {f"arm{i}": {"pace": 2 + NOISE[:1], "test/error": 0.3 + NOISE[:1]} for i in range(10)}
    run = run_of(tmp_path / "many", arms)
    assert len(said(run)) == 7
    assert "2 more arms" in notices(run)
    assert len(said(run_of(tmp_path / "three", dict([*arms.items()][:4])))) == 3 * 2
    assert all(
        "has a test error" in sentence for sentence in said(run)
    )  # where a pair has one, it is what one looks for


def test_what_is_no_number_is_counted_and_what_is_none_at_all_is_not_said(tmp_path):
    lost = np.append(NOISE[:12], math.nan)
    run = run_of(tmp_path / "run", {"a": {"test/error": 0.3 + lost}, "b": {"test/error": 0.2 + NOISE}})
    assert "(13 pairs; 1 net diverged, which counts as worst)" in said(run)[0]
    assert said(run_of(tmp_path / "none", {arm: {"test/error": np.array([math.nan])} for arm in "ab"})) == []


def test_where_all_nets_of_one_arm_diverged_that_is_said_and_tested(tmp_path):
    lost = 0 * NOISE + math.nan
    (said_of_it,) = said(run_of(tmp_path / "run", {"a": {"test/error": lost}, "b": {"test/error": 0.2 + NOISE}}))
    nets = "0 of 13 nets of b and 13 of 13 nets of a have no finite test error, as they diverged"
    assert said_of_it == f"After epoch 10, {nets}: b is better (13 pairs)."


def test_what_numbers_do_not_answer_has_its_share_of_the_chance_nevertheless(tmp_path):
    """Whether all nets reach one training risk changes from look to look: eight pairs settle two questions, not these four."""
    arms = {arm: {"test/error": error + 0 * NOISE[:8], "train/error": error + 0 * NOISE[:8]} for arm, error in ERRORS}
    sentences = said(run_of(tmp_path / "two", arms))
    assert len(sentences) == 2 and not any("too few" in sentence for sentence in sentences)
    run = run_of(tmp_path / "four", {arm: numbers | {"train/risk": 0 * NOISE[:8]} for arm, numbers in arms.items()})
    sentences = said(run)
    assert len(sentences) == 2 and all("(8 pairs, too few to test)" in sentence for sentence in sentences)
    caption = first.section(gather([run]), ()).blocks[0].caption
    assert "To settle one of 4 questions, answered or not, takes 9 pairs or more" in caption


def test_rounding_is_neither_above_nor_below(tmp_path):
    arms = {"a": {"test/error": np.array([0.1 + 0.2])}, "b": {"test/error": np.array([0.3])}}
    (sentence,) = said(run_of(tmp_path / "run", arms))
    assert "a test error as large as that of a: they are equal" in sentence


def test_where_nets_that_diverged_decide_they_also_say_which_is_less(tmp_path):
    same = np.full(13, 0.2)
    lost = np.where(np.arange(13) < 12, math.nan, same)
    (said_of_it,) = said(run_of(tmp_path / "run", {"a": {"test/error": lost}, "b": {"test/error": same}}))
    assert "below that of a (13 pairs; 12 nets diverged, which counts as worst)" in said_of_it


def test_where_they_decide_against_the_nets_that_did_not_diverge_both_are_said(tmp_path):
    """The one pair of finite errors has 0.2 and 0.19, and the sentence said that 0.2 is below."""
    same = np.full(13, 0.2)
    lost = np.where(np.arange(13) < 12, math.nan, 0.19)
    run = run_of(tmp_path / "run", {"a": {"test/error": lost}, "b": {"test/error": same}})
    (said_of_it,) = said(run)
    assert said_of_it.startswith("After epoch 10 b has a test error 0.01 [")
    assert said_of_it.endswith(
        "above that of a (13 pairs; 12 nets diverged, which counts as worst, so that b is better)."
    )


def test_where_only_a_net_that_diverged_differs_the_others_are_as_large(tmp_path):
    """It was "a test error 0 above that of a"."""
    same, lost = np.full(3, 0.2), np.array([0.2, math.nan, 0.2])
    (said_of_it,) = said(run_of(tmp_path / "run", {"a": {"test/error": lost}, "b": {"test/error": same}}))
    assert "a test error as large as that of a (3 pairs; 1 net diverged, which" in said_of_it


def test_an_epoch_within_which_it_ended_is_rounded(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.append(Row(arm, epoch, 1, "test/error", 0.2) for arm in ("a", "b") for epoch in (0, 4 / 3))
    assert said(run)[0].startswith("After epoch 1.3333 b has")


def test_a_net_that_diverged_is_not_equal_to_one_of_which_nothing_is_known():
    """The run of seed 8 ended with its plain net, whose counterpart nobody knows at the later epochs of the others."""
    a, b = (np.append(np.full(8, 0.2), lost) for lost in (math.inf, math.nan))
    question = first.Question("At the end", "has a test error", "below", "above", a, b, (), name="test/error")
    assert not question.is_equal() and question.is_answered()
    found = judged("test/error", "", a[8:], b[8:], None, 0.05)
    assert question._replace(a=a[8:], b=b[8:]).is_answered() == (found.pairs > 0)


def test_other_tasks_are_not_compared_and_other_data_not_paired(tmp_path):
    def with_data(name: str, **data: object) -> RunFolder:
        config = {"data": {"class_path": "CIFAR10", "init_args": {"batch_size": 8}} | data}
        return run_of(tmp_path / name, {"net": {"test/error": 0.3 + NOISE[:2]}}, config)

    base, other = with_data("base"), with_data("other", class_path="MNIST")
    third = with_data("third", init_args={"batch_size": 9})
    assert said(base, other) == []
    assert [sentence.split()[3] for sentence in said(base, other, third)] == ["third/net"]
    assert "Not compared with base/net, because they were trained on different tasks: other/net." in notices(
        base, other, third
    )
    assert "Not paired by seed, but compared in their order: third/net and base/net." in notices(base, third)


def test_risks_and_curvature_of_two_losses_are_not_compared(tmp_path):
    """A cross-entropy of 0.1 was said to be reached sooner than a squared error of 0.1."""
    numbers = {
        "pace": 3 + 0 * NOISE,
        "test/error": 0.3 + NOISE,
        "hessian/top1": 50 + NOISE,
        "hessian/unconverged": 0 * NOISE,
    }
    runs = {loss: {"model": {"net": "Net", "loss": loss}} for loss in ("cross_entropy", "squared_error")}
    (sentence,) = said(*(run_of(tmp_path / loss, {"net": numbers}, config) for loss, config in runs.items()))
    assert sentence.startswith(
        "After epoch 10 squared_error/net has a test error as large as that of cross_entropy/net"
    )
    same = [run_of(tmp_path / "same" / name, {"net": numbers}, runs["cross_entropy"]) for name in "ab"]
    for run in same:
        run.append(Row(f"net-seed{seed:02d}", 0, 0, "test/error", 0.9) for seed in range(len(NOISE)))
    assert len(said(*same)) == 4  # also of errors at equal risk


def test_they_are_first_and_each_leads_to_its_figure(bank, tmp_path):
    page = gather([bank])
    section = sections_of(page)[0]
    assert (section.key, section.title) == ("findings", "What happened")
    assert [cell.link for cell in section.blocks[0].sentences] == [
        "learning-test-error",
        "learning-train-risk",
        "curvature-hessian-curves",
    ]
    text = page_of(bank, out=tmp_path / "page.html")
    ids = {value for _, name, value in Page(text).attributes if name == "id"}
    assert all(cell.link in ids for cell in section.blocks[0].sentences)
    assert said(bank)[0] in Page(text).text


def test_before_them_stands_how_far_the_runs_are_how_good_and_what_it_took(bank, tmp_path):
    bank.append([Row("", EPOCHS, EPOCHS, "time/epoch", 90.0), Row("", EPOCHS, EPOCHS, "cost/hessian", 30.0)])
    other = run_of(tmp_path / "other", {"net": {"test/error": 0.3 + NOISE[:1]}}, {"trainer": {"max_epochs": 20}})
    other.append([Row("", 5, 5, "time/epoch", 9.0)])  # not looked at in every epoch
    errors = f"Last test error: plain {brief(0.3 + NOISE.min(), 3)} to {brief(0.3 + NOISE.max(), 3)} (13 seeds); "
    took = "Time taken: training and evaluation 90 s, measures 30 s."
    (alone,) = {first.section(gather([bank]), ()).lead}
    assert alone.startswith(
        f"26 nets of depth 20 in 1 run, 10 epochs; not marked as finished: {bank.path.name}. {errors}"
    )
    assert alone.endswith(took)
    bank.finish(EPOCHS)
    both = first.section(gather([bank, other]), ()).lead
    assert both.startswith("27 nets of depth 20 in 2 runs, 10 epochs; not marked as finished: other (10 of 20 epochs).")
    other.append([Row("net-seed00", EPOCHS + 1, 1, "train/risk", 1.0)])
    assert f"other {brief(0.3 + NOISE[0], 3)} (epoch 10)" in first.section(gather([bank, other]), ()).lead
    other.finish(EPOCHS + 1)
    assert "27 nets of depth 20 in 2 runs, 10 to 11 epochs; finished." in first.section(gather([bank, other]), ()).lead


def test_limits_on_the_data_stand_there_and_over_the_table_after_training(bank, tmp_path):
    limits = {
        "trainer": {"limit_train_batches": 1.0, "limit_val_batches": 1},
        "data": {"init_args": {"test_limit": 20}},
    }
    other = run_of(tmp_path / "other", {"net": {"test/error": 0.3 + NOISE[:1]}}, limits)
    said = "Limits on the data: trainer.limit_val_batches 1; data.init_args.test_limit 20"
    assert f" {said}. Last" in first.section(gather([other]), ()).lead
    assert summary(other).title == f"other after epoch 10. {said}"
    assert "Limits" not in first.section(gather([bank]), ()).lead
    both = first.section(gather([bank, other]), ()).lead
    assert "limit_val_batches 1 (1 of 2 runs); data.init_args.test_limit 20 (1 of 2 runs). Last" in both


def test_a_learning_curve_stands_beside_them(finished, page):
    (section,) = (section for section in sections_of(gather([finished])) if section.thumbnail)
    assert section.key == "findings" and f'<use href="#{section.thumbnail}-svg"/>' in page
    assert page.count(f'id="{section.thumbnail}-svg"') == 1


def test_names_are_text(tmp_path):
    name = '<b>{0}"&'
    run = run_of(tmp_path / "run", {arm: {"test/error": 0.3 + NOISE[:1]} for arm in ("a", name)})
    text = page_of(run)
    assert f"After epoch 10 {name} has" in Page(text).text
    assert "b" not in Page(text).tags
