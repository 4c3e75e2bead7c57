"""No claim changes in silence: the registration says what was changed, when, why, and whether after a look."""

import datetime
from dataclasses import replace

import yaml

from lightning_app.checks import Within
from lightning_app.claims import as_printed
from lightning_app.reproduce import registration
from lightning_app.reproduce.registration import differences, main, of_code, page, registered, updated

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

    monkeypatch.setattr("lightning_app.reproduce.yu_tomasi.as_printed", looser)
    found = differences(of_code(), registered())
    assert any("table-1: 'L, plain, depth 20'" in each and "within 9" in each for each in found)


def test_new_changed_and_withdrawn_claims_are_said():
    claim = {"test": "above 1", "class": "trained", "hash": "a"}
    record = {"p/t": {"L": claim | {"since": "2026-11-21"}, "M": claim | {"since": "2026-11-21"}}}
    code = {"p/t": {"L": claim | {"test": "above 0.5", "hash": "b"}, "N": claim}}
    assert len(differences(code, record)) == 3
    new = updated(code, record, "a reason", True, "2026-11-23")
    assert differences(code, new) == []
    (change,) = new["p/t"]["L"]["changed"]
    assert change == {"on": "2026-11-23", "why": "a reason", "after_a_look": True, "test_before": "above 1"}
    assert new["p/t"]["L"]["since"] == "2026-11-21" and new["p/t"]["N"]["since"] == "2026-11-23"
    assert new["p/t"]["M"]["withdrawn"]["why"] == "a reason"
    again = updated(code, new, "another reason", False, "2026-11-24")
    assert again == new, "what is written down is not written again"
    assert "changed 2026-11-23, after a look: a reason (before: above 1)" in page(new)


def test_dates_are_dates_and_reasons_are_given():
    for entries in registered().values():
        for entry in entries.values():
            datetime.date.fromisoformat(str(entry["since"]))
            for change in [*entry.get("changed", ()), *([entry["withdrawn"]] if "withdrawn" in entry else ())]:
                datetime.date.fromisoformat(str(change["on"]))
                assert change["why"] and isinstance(change["after_a_look"], bool)


def test_the_command_says_what_differs_and_writes_it_down(tmp_path, monkeypatch, capsys):
    record = registered()
    lost = next(iter(record["yu-tomasi/table-1"]))
    del record["yu-tomasi/table-1"][lost]
    file = tmp_path / "registration.yaml"
    file.write_text(yaml.safe_dump(record))
    monkeypatch.setattr(registration, "FILE", file)
    assert main([]) == 1
    assert f"yu-tomasi/table-1: '{lost}' is not registered." in capsys.readouterr().out
    assert main(["--say", "found again"]) == 0
    assert main([]) == 0
