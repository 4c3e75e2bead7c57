"""The table at the end of a training run."""

from lightning_app.common.numbers import number
from lightning_app.report import summary
from lightning_app.runs import Row, RunFolder


def last(run: RunFolder, member: str, name: str) -> str:
    log = run.log()
    return number(log[(log["member"] == member) & (log["name"] == name)]["value"].iloc[-1])


def test_one_row_a_net(run):
    title, head, rows = summary(run)
    assert title == "quick after epoch 6"
    assert head[0] == "net"
    assert head[-1] == "cushion layer10"
    names = ["train/risk", "train/error", "test/error", "cushion/layer10/median"]
    for member, row in zip(("plain", "residual"), rows, strict=True):
        assert row == [member, *(last(run, member, name) for name in names)]


def test_what_was_not_measured_is_a_dash(tmp_path):
    run = RunFolder(tmp_path / "bare")
    run.append([Row("net", 2, 10, "train/risk", float("nan"))])
    assert summary(run).rows[-1] == ["net", "nan", "-", "-", "-"]


def test_what_was_measured_earlier_says_when_and_validation_stands_in_for_test(tmp_path):
    run = RunFolder(tmp_path / "late")
    run.append([Row("net", 2, 10, "val/error", 0.25), Row("net", 3, 15, "train/risk", 1.5)])
    found = summary(run)
    assert found.head[3] == "val error" and found.rows == [["net", "1.500", "-", "0.2500 (epoch 2)", "-"]]


def test_errors_are_of_the_test_data_where_there_are_validation_data_too(tmp_path):
    run = RunFolder(tmp_path / "both")
    run.append([Row("net", 2, 10, "val/error", 0.25), Row("net", 2, 10, "test/error", 0.5)])
    found = summary(run)
    assert found.head[3] == "test error" and found.rows[0][3] == "0.5000"


def test_no_numbers_yet(tmp_path):
    run = RunFolder(tmp_path / "empty")
    run.append([])
    assert summary(run) == ("empty: no net has logged a number yet.", [], [])
