"""No claim changes in silence: the registration says what was changed, when, why, and whether after a look."""

import datetime
import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from lightning_app.papers import find, recipes
from lightning_app.papers.parts import PAPER
from lightning_app.papers.predicates import Within
from lightning_app.papers.yu_tomasi.table_1 import as_printed
from lightning_app.reproduce import registration
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.registration import NOWHERE, differences, main, of_code, page, registered, updated
from lightning_app.runs.configuration import layered
from tests.helpers import ROOT

CODE = of_code()


def test_every_claim_is_registered_as_it_is():
    assert differences(CODE, registered()) == [], (
        "a claim has changed: say why with `python -m lightning_app.reproduce.registration --say WHY` "
        "(and --after-a-look if results had been seen)"
    )


def test_a_changed_tolerance_is_noticed(monkeypatch):
    """The words of a test come from the test itself, so that a tolerance cannot change without them."""

    def looser(symbol, arm, depth, paper, ours, seeds=True):
        claim = as_printed(symbol, arm, depth, paper, ours, seeds)
        return replace(claim, test=str(Within(paper, 9.0)))

    monkeypatch.setattr("lightning_app.papers.yu_tomasi.table_1.as_printed", looser)
    found = differences(of_code(), registered())
    assert any("table-1: 'L, plain, depth 20'" in each and "within 9" in each for each in found)


def test_a_tuned_recipe_is_noticed(monkeypatch):
    """Rate and epochs could be tried out before the first record; what is measured beside, and where, changes no number."""

    def changed(key: str, value: object) -> list[str]:
        def tuned(paper: str, run: str) -> dict[str, Any]:
            found = recipes.recipe(paper, run)
            return layered(found, nested(key, value)) if run == "depth20" else found

        monkeypatch.setattr("lightning_app.reproduce.registration.recipe", tuned)
        return [each for each in differences(of_code(), registered()) if each.startswith("recipes")]

    said = ["recipes: 'configs/papers/yu-tomasi/depth20.yaml' was changed since it was registered."]
    assert changed("model.optimizer.init_args.lr", 0.02) == changed("trainer.max_epochs", 40) == said
    assert changed("trainer.callbacks", []) == changed("model.compile", True) == []


def nested(key: str, value: object) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: nested(rest, value) if rest else value}


def test_new_changed_and_withdrawn_claims_are_said():
    claim = {"test": "above 1", "class": "trained", "hash": "a"}
    record = {"p/t": {"L": claim | {"since": "2026-11-21"}, "M": claim | {"since": "2026-11-21"}}}
    code = {"p/t": {"L": claim | {"test": "above 0.5", "hash": "b"}, "N": claim}}
    assert len(differences(code, record)) == 3
    assert "p/t: 'L' was registered with another test ('above 1', now 'above 0.5')." in differences(code, record)
    (words,) = differences({"p/t": {"L": claim | {"hash": "b"}}}, {"p/t": {"L": claim}})
    assert words == "p/t: 'L' was registered with other words, readings or schedule, and the same test ('above 1')."
    file = {"test": "code", "class": "", "hash": "a"}
    (changed,) = differences({"code that judges": {"a.py": file}}, {"code that judges": {"a.py": file | {"hash": "b"}}})
    assert changed == "code that judges: 'a.py' was changed since it was registered."
    new = updated(code, record, "a reason", True, "2026-11-23")
    assert differences(code, new) == []
    (change,) = new["p/t"]["L"]["changed"]
    assert change == {"on": "2026-11-23", "why": "a reason", "after_a_look": True, "test_before": "above 1"}
    assert new["p/t"]["L"]["since"] == "2026-11-21" and new["p/t"]["N"]["since"] == "2026-11-23"
    assert new["p/t"]["N"]["added"]["after_a_look"], "a claim that comes after the results is one of another kind"
    assert new["p/t"]["M"]["withdrawn"]["why"] == "a reason"
    again = updated(code, new, "another reason", False, "2026-11-24")
    assert again == new, "what is written down is not written again"
    assert "changed 2026-11-23, after a look: a reason (before: above 1)" in page(new)


def test_a_withdrawn_claim_that_is_back_is_said():
    code = {"p/t": {"L": {"test": "above 1", "class": "trained", "hash": "a"}}}
    withdrawn = updated({}, updated(code, {}, "a test", False, "2026-11-21"), "it failed", True, "2026-11-22")
    assert differences(code, withdrawn) == ["p/t: 'L' was withdrawn and is a claim again."]
    back = updated(code, withdrawn, "it was right", True, "2026-11-23")
    assert differences(code, back) == []
    assert [change["why"] for change in back["p/t"]["L"]["changed"]] == ["it failed", "it was right"]
    assert differences({}, back) != [], "it can be withdrawn once more, and that has to be said"


def test_what_judges_cannot_change_behind_the_same_words(tmp_path, monkeypatch):
    """The hash of a file: another bound changes it, another comment, docstring or drawing does not."""
    text = registration.FILE.parents[1].joinpath("papers", "predicates.py").read_text()

    def hashed(content: str) -> str:
        file = tmp_path / "predicates.py"
        file.write_text(content)
        return registration._skeleton(file)

    assert hashed(text) != hashed(text.replace("low > 0 or high < 0", "low > -5 or high < 0"))
    silent = text.replace('"""The tests that claims are put to', '"""Tests').replace(
        "import math", "# why\nimport math"
    )
    assert hashed(text) == hashed(silent + "\n\ndef draw_it():\n    return 1\n")


def test_the_schedule_of_reduced_scale_is_registered(monkeypatch):
    from lightning_app.papers import yu_tomasi
    from lightning_app.papers.parts import Reduced

    table_1 = next(artefact for artefact in yu_tomasi.PAPER.artefacts if artefact.key == "table-1")
    before = dict(registration._claims(yu_tomasi.PAPER, table_1))
    shorter = replace(table_1, runs=tuple(replace(run, reduced=Reduced(9, (5, 6), 1)) for run in table_1.runs))
    after = dict(registration._claims(yu_tomasi.PAPER, shorter))
    changed = {quantity for quantity in before if before[quantity]["hash"] != after[quantity]["hash"]}
    assert changed and all(quantity.endswith("(reduced scale)") for quantity in changed)


def test_dates_are_dates_and_reasons_are_given():
    for entries in registered().values():
        for entry in entries.values():
            datetime.date.fromisoformat(str(entry["since"]))
            for _, change in registration._history(entry):
                datetime.date.fromisoformat(str(change["on"]))
                assert change["why"] and isinstance(change["after_a_look"], bool)


def test_the_command_says_what_differs_and_writes_it_down(tmp_path, monkeypatch, capsys):
    record = registered()
    lost = next(iter(record["yu-tomasi/table-1"]))
    del record["yu-tomasi/table-1"][lost]
    file = tmp_path / "registration.yaml"
    file.write_text(yaml.safe_dump(record))
    monkeypatch.setattr(registration, "FILE", file)
    monkeypatch.setattr(registration, "of_code", lambda: CODE)
    assert main([]) == 1
    assert f"yu-tomasi/table-1: '{lost}' is not registered." in capsys.readouterr().out
    assert main(["--say", "found again"]) == 0
    assert f"yu-tomasi/table-1: '{lost}' is not registered.\n1 difference written" in capsys.readouterr().out
    assert main([]) == 0


def test_every_row_of_a_committed_record_is_registered():
    """A claim that appears only where there are results is not seen without them, and would be judged unregistered."""
    known, missing = registered(), []
    for file in (ROOT / "results").glob("**/verdict.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        scale = "" if record["scale"] == "paper" else f" ({record['scale']} scale)"
        if record["scale"] != "smoke":
            claims = known.get(record["artefact"], {})
            missing += [row["quantity"] for row in record["rows"] if row["quantity"] + scale not in claims]
    assert missing == []


def test_a_claim_about_an_arm_that_a_run_lacks_is_an_error():
    """It would be missing for ever, and read as not trained yet."""
    ((its_paper, table_1),) = find("yu-tomasi/table-1")
    results = Reproduction(its_paper, table_1, PAPER, NOWHERE).evidence().results
    assert results.nets("depth20", "plain") == []
    with pytest.raises(ValueError, match=r"expected an arm of depth20 \(plain, residual\), got 'plian'"):
        results.final("depth20", "plian", "train/risk")
