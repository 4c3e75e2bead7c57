"""The form of verdict.json: numbers that JSON has none of, what is no record, and the schema that all committed ones keep to."""

import json
import math
import subprocess
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_app.common.errors import UserError
from lightning_app.papers import predicates
from lightning_app.papers.predicates import Within
from lightning_app.papers.records import read_record, rows_of, value, verdict_of
from lightning_app.papers.verdicts import Basis, Class, Sample, Varies, Verdict
from lightning_app.reproduce.tables import frame
from tests.helpers import ROOT

SCHEMA = json.loads((ROOT / "results" / "verdict.schema.json").read_text())
VALID = jsonschema.Draft202012Validator(SCHEMA)
ROW = jsonschema.Draft202012Validator({"$ref": "#/$defs/row", "$defs": SCHEMA["$defs"]})


def tracked(*paths: str) -> list[Path]:
    """Files that are committed or staged, and are there; none where there is no git."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z", *paths], cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return sorted(ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


RECORDS = sorted(path for path in (ROOT / "results").glob("**/verdict.json") if "smoke" not in path.parts)
COMMITTED = [path for path in tracked("results") if path.name == "verdict.json"] or RECORDS


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of sums beyond the largest float
@given(values=st.lists(st.floats(), max_size=4), scale=st.sampled_from(["paper", "reduced", "smoke"]))
def test_any_numbers_go_through_json_and_keep_to_the_schema(values, scale):
    claim = predicates.tested("mu", 1.0, Within(1.0, 0.5), Sample(tuple(values)))
    (row,) = json.loads(json.dumps(rows_of([claim], Class.TRAINED, scale), allow_nan=False))
    ROW.validate(row)
    (reading,) = row["readings"]
    again = [value(encoded) for encoded in reading["values"]]
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(again, values, strict=True))
    assert reading["n"] == len(values)
    assert (reading["mean"] is None, reading["sd"] is None) == (not values, len(values) < 2)


def test_a_table_has_mean_sd_and_what_the_mean_is_of_the_paper_s_number():
    claims = [
        predicates.tested("mu", 2.0, Within(1.0, 0.5), Sample((1.0, 4.0))),
        predicates.tested("nothing measured", 2.0, Within(1.0, 0.5), Sample(())),
        predicates.shown("zero", 0.0, "one run", Sample((3.0,))),
    ]
    full = frame(rows_of(claims, Class.TRAINED, "paper"))[["ours", "sd", "n", "ratio"]]
    nan = math.nan
    expected = [[2.5, 4.5**0.5, 2, 1.25], [nan, nan, 0, nan], [3.0, nan, 1, nan]]
    assert full.to_numpy(float) == pytest.approx(np.array(expected), nan_ok=True)


def test_how_far_reduced_scale_went_stands_with_what_it_judged_and_nowhere_else():
    claims = [predicates.tested("mu", 1.0, Within(1.0, 0.5), Sample((1.1,)), ratio=ratio) for ratio in (True, False)]
    claims.append(predicates.shown("L", 1.0, "one run", Sample((1.1,))))
    found = rows_of(claims, Class.TRAINED, "reduced", "30 of 200 epochs")
    assert [verdict_of(row) for row in found] == ["agrees at 30 of 200 epochs", "not tested", "described"]
    assert [verdict_of(row) for row in rows_of(claims[:1], Class.TRAINED, "paper", "30 of 200 epochs")] == [
        "reproduced"
    ]


def test_the_words_of_the_schema_are_those_of_the_code():
    parts = {"class": Class, "verdict": Verdict}
    for name, words in parts.items():
        assert SCHEMA["$defs"][name]["enum"] == [word.value for word in words]
    fields = SCHEMA["$defs"]["row"]["properties"]
    for name, words in {"basis": Basis, "readings_differ_in": Varies}.items():
        assert fields[name]["enum"] == [word.value for word in words]


@pytest.mark.parametrize(
    "text", ["[]", "{}", "{", '{"rows": 3}', '{"rows": [3]}', '{"rows": [{"quantity": "mu"}]}', "null"]
)
def test_what_is_no_record_is_an_error_message(tmp_path, text):
    (tmp_path / "verdict.json").write_text(text)
    with pytest.raises(UserError, match=r"verdict\.json") as error:
        read_record(tmp_path)
    assert "\n" not in str(error.value)


def test_the_schema_is_one_and_says_what_each_field_is():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for name, part in {"record": SCHEMA, **SCHEMA["$defs"]}.items():
        assert part["description"], name


def test_committed_records_keep_to_the_schema():
    assert COMMITTED
    wrong = {str(file): [*VALID.iter_errors(json.loads(file.read_text()))] for file in COMMITTED}
    assert {file: errors for file, errors in wrong.items() if errors} == {}


def test_no_two_rows_of_a_committed_record_have_the_same_quantity():
    for file in COMMITTED:
        quantities = [row["quantity"] for row in json.loads(file.read_text())["rows"]]
        assert len(set(quantities)) == len(quantities), file
