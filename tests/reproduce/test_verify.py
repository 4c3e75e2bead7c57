"""Judging again: what agrees, what one changed digit does, and what a user with a fresh clone can do."""

import io
import json
import lzma
import math
import os
import re
import shutil
import signal
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightning_app import papers
from lightning_app.cli import main
from lightning_app.common.errors import UserError
from lightning_app.papers import predicates
from lightning_app.papers.parts import PAPER, SMOKE, Artefact, Computation, Paper
from lightning_app.papers.predicates import Within, at_least
from lightning_app.papers.records import rows_of
from lightning_app.papers.verdicts import Class, Sample
from lightning_app.papers.yu_tomasi.nets import SEED_RUNS
from lightning_app.papers.yu_tomasi.table_3_fig_7 import TABLE_3_IN_PRINT as TABLE_3
from lightning_app.reproduce import command as reproducing
from lightning_app.reproduce import making, verify
from lightning_app.reproduce.evidence import Reproduction
from lightning_app.reproduce.job import JobOptions
from lightning_app.reproduce.making import make
from lightning_app.reproduce.packing import MANIFEST, file_digest
from tests.helpers import ROOT, command
from tests.reproduce.conftest import leave_run
from tests.reproduce.test_records import COMMITTED, VALID, tracked

TRAINED, COMPUTED = "yu-tomasi/table-3", "paper/fig-0"
RECORDS = {TRAINED: "yu-tomasi/table-3/verdict.json", COMPUTED: "paper/fig-0/verdict.json"}
RUN, PIECES = "yu-tomasi/runs/depth32", "paper/pieces/depths"


def table_3(arm: str, seed: int, epoch: int) -> dict[str, float]:
    column = 2 * (arm == "residual") + (epoch > 0)
    fields = {key: float(printed[column]) + 0.001 * seed for key, printed in TABLE_3.items()}
    return {f"{family}/{key}": fields[key] for family in ("weight_mass", "weight_mass_transferred") for key in fields}


def depths(factor: float = 1.0):
    """Computes depths."""

    def compute(source, depth: int):
        return {"depths": factor * depth * np.array([1.0, 1.5, 2.0]), "data": "three numbers (sha256 abc)"}

    return compute


def small_paper(compute=None, pieces=(2, 4, 8), eighth: int = 8) -> Paper:
    """A paper of one artefact that is computed; the piece depth8 is of a depth of its own."""

    def claims(results):
        there = results.computed(computation)
        ours = results.of(computation, lambda two, eight: eight["depths"] - two["depths"], "depth2", "depth8")
        by_piece = [results.known(float(arrays["depths"][0])) for arrays in there.values()]
        first = by_piece[0] if by_piece else Sample(missing="nothing yet")
        return [
            predicates.tested("difference", 9.0, Within(9.0, 0.1), ours),
            predicates.tested("first depth", 2.0, Within(2.0, 0.01), first),
            predicates.tested("no bound", "infinite", at_least(1e9), results.known(math.inf)),
        ]

    asked = {f"depth{n}": {"depth": eighth if n == 8 else n} for n in pieces}
    computation = Computation("depths", compute or depths(), asked)
    artefact = Artefact("fig-0", "depths", claims, "As they are.", computations=(computation,), about=Class.FORMULA)
    return Paper("paper", "A paper.", (artefact,))


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """Results of a trained artefact and of a computed one, made once."""
    home = tmp_path_factory.mktemp("original")
    leave_run(home, SEED_RUNS["depth32"], table_3).identifier()
    ((its_paper, table),) = papers.find(TRAINED)
    make(Reproduction(its_paper, table, PAPER, home / "results"), home / "runs")
    its_paper = small_paper()
    make(Reproduction(its_paper, its_paper.artefacts[0], PAPER, home / "results"), home / "runs", JobOptions(home))
    return home / "results"


@pytest.fixture
def known(monkeypatch):
    """The small paper among those that there are."""
    replace_paper(monkeypatch, small_paper())


def replace_paper(monkeypatch, small: Paper) -> None:
    find = papers.find

    def found(name: str):
        return [(small, artefact) for artefact in small.artefacts] if name.startswith("paper") else find(name)

    for user in ("papers", "reproduce.verify"):
        monkeypatch.setattr(f"lightning_app.{user}.find", found)


@pytest.fixture
def results(original, known, tmp_path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "results"))


@pytest.fixture
def said(capsys, results):
    """Exit code and output of `verify` on these results."""

    def said(*words: str) -> tuple[int, str]:
        code = main(["verify", *(words or (TRAINED, COMPUTED)), "--results", str(results)])
        heard = capsys.readouterr()
        assert "Traceback" not in heard.out + heard.err
        return code, heard.out + heard.err

    return said


@pytest.fixture
def differs(said):
    """The lines of `verify` that say what differs, where something does."""

    def differs(*words: str) -> list[str]:
        code, output = said(*words)
        assert code == 1, output
        return differing(output)

    return differs


def differing(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("differs")]


def edit(file: Path, change) -> None:
    record = json.loads(file.read_text())
    change(record)
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def row(record: dict, quantity: str) -> dict:
    return next(row for row in record["rows"] if row["quantity"].startswith(quantity))


def test_all_agrees(said):
    code, output = said()
    assert code == 0, output
    assert "2 records: all agree" in output
    assert differing(output) == []
    assert output.count("files of ") == 2


def test_what_was_made_keeps_to_the_schema(original):
    for name in RECORDS.values():
        record = json.loads((original / name).read_text())
        VALID.validate(record)
        assert record["evidence"]
    (infinite,) = row(json.loads((original / RECORDS[COMPUTED]).read_text()), "no bound")["readings"]
    assert infinite["values"] == ["inf"]


def test_a_record_of_smoke_scale_and_one_of_nothing_keep_to_the_schema(tmp_path):
    small = small_paper()
    for scale, work in ((PAPER, None), (SMOKE, JobOptions(tmp_path))):
        made = make(Reproduction(small, small.artefacts[0], scale, tmp_path / "results"), tmp_path / "runs", work)
        VALID.validate(json.loads((made.folder / "verdict.json").read_text()))
    leave_run(tmp_path, SEED_RUNS["depth32"], table_3, scale=SMOKE)
    ((its_paper, table),) = papers.find(TRAINED)
    made = make(Reproduction(its_paper, table, SMOKE, tmp_path / "results"), tmp_path / "runs")
    VALID.validate(json.loads((made.folder / "verdict.json").read_text()))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["rows"][0].update({"class": "untrained"}),
        lambda record: record["rows"][0].update({"basis": "hearsay"}),
        lambda record: record["rows"][0].update({"verdict": "confirmed"}),
        lambda record: record["rows"][0].update({"verdict": "agrees"}),  # a word of reduced scale
        lambda record: record["rows"][0].update({"readings_differ_in": "mood"}),
        lambda record: record["rows"][0].update({"remark": "more"}),
        lambda record: record["rows"][0]["readings"][0].update({"values": ["infinity"]}),
        lambda record: record["rows"][0]["readings"][0].pop("n"),
        lambda record: record.update({"scale": "large"}),
        lambda record: record["evidence"][0].update({"state": "done"}),
        lambda record: record["evidence"][0].update({"manifest": "abc"}),
        lambda record: record["counts"].update({"sum": {"checked": 3}}),
        lambda record: record["rendered"].pop("commit"),
    ],
)
def test_one_wrong_word_does_not_keep_to_the_schema(original, change):
    record = json.loads((original / RECORDS[TRAINED]).read_text())
    change(record)
    assert not VALID.is_valid(record)


def change_value(row: dict) -> None:
    reading = row["readings"][0]
    reading["values"][1] = round(reading["values"][1] * 1.001, 12)


def first_reading(key: str):
    return lambda row: row["readings"][0].update({key: "x"})


INVENTED = {"verdict": "agrees", "extent": "30 of 200 epochs, 3 seeds"}
WORDS = ("verdict", "class", "basis", "why", "power", "readings_differ_in")
ROW_CHANGES = [
    (change_value, "seed 1 recorded"),
    (lambda row: row["readings"][0].update(mean=row["readings"][0]["mean"] * 1.00001), "mean recorded"),
    (lambda row: row["readings"][0].update(mean=str(row["readings"][0]["mean"])), "mean recorded"),
    (lambda row: row["readings"][0].update(values=[True] * row["readings"][0]["n"]), "recorded True"),
    (lambda row: row["readings"][0]["values"].pop(), "recorded"),
    (lambda row: row["readings"].append(row["readings"][0]), r"\d readings recorded"),
    (lambda row: row.pop("power"), "power recorded nothing, now"),
    (lambda row: row.update(test=row["test"] + " or so"), "test recorded"),
    (lambda row: row.update(paper=0.125), "the paper's number recorded 0.125"),
    (lambda row: row.update(reduced=INVENTED), "reduced"),
    *((partial(dict.update, **{key: "x"}), f"{key} recorded 'x'") for key in (*WORDS, "remark")),
    *((first_reading(key), f"{key} recorded 'x'") for key in ("held", "n", "why", "remark")),
]


@pytest.mark.parametrize(("change", "words"), ROW_CHANGES)
def test_a_changed_row_is_found_and_named(differs, results, change, words):
    """Every field of a row, and no other row is blamed. Of an artefact that is judged in a moment; of runs: below."""
    edit(results / RECORDS[COMPUTED], lambda record: change(row(record, "difference")))
    found = differs()
    (named,) = [line for line in found if f"{COMPUTED}: difference: " in line]
    assert re.search(words, named)
    others = {line.split(f"{COMPUTED}: ")[1].split(":")[0] for line in found if line != named}
    assert others <= {"counts", "tables", "record"}  # which are held against the record's rows, or cannot be


def repack(log: Path, change) -> None:
    log.write_bytes(lzma.compress(change(lzma.decompress(log.read_bytes()).decode()).encode(), preset=9))


def one_digit(text: str) -> str:
    """The last row of the log, whose number has another second digit."""
    place = text.rindex(",") + 1
    digit = re.search(r"\d\D*?(\d)", text[place:]).start(1) + place
    return text[:digit] + str((int(text[digit]) + 5) % 10) + text[digit + 1 :]


def test_one_digit_in_the_log_is_found_by_the_file_then_its_manifest_and_at_last_by_the_row(differs, results):
    """Somebody who changes the sums too is found one step further on, and at last by the numbers."""
    log, manifest = results / RUN / "log.csv.xz", results / RUN / MANIFEST
    repack(log, one_digit)
    assert any(f"{TRAINED}: files of {RUN}: {log} is not the file" in line for line in differs())
    edit(manifest, lambda content: content["files"].update({"log.csv.xz": file_digest(log)}))
    assert any(f"{manifest} is not the file that the record was made of" in line for line in differs())
    edit(results / RECORDS[TRAINED], lambda record: record["evidence"][0].update(manifest=file_digest(manifest)))
    found = differs()
    assert not any("files of" in line for line in found)
    assert any("mass of ID entries, t_200: " in line for line in found), found


def save_again(piece: Path, **others) -> None:
    """The same piece with other arrays: a whole, plain .npz."""
    with np.load(piece) as arrays:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **(dict(arrays) | others))
    piece.write_bytes(buffer.getvalue())


def test_one_digit_in_a_piece_is_found_by_file_and_by_row(differs, results):
    piece = results / PIECES / "depth8.npz"
    save_again(piece, depths=np.array([8.0, 12.0, 16.5]))
    assert any(f"{COMPUTED}: files of {PIECES}: {piece} is not the file" in line for line in differs())
    sums = {"depth8.npz": file_digest(piece)}
    edit(results / RECORDS[COMPUTED], lambda record: record["evidence"][0]["files"].update(sums))
    assert any(f"{COMPUTED}: difference: " in line for line in differs())


def test_rows_are_not_judged_again_without_their_pieces(said, results):
    (results / PIECES / "depth2.npz").unlink()
    assert f"note     {COMPUTED}: rows are not judged again" in said()[1]


def lost(*names: str):
    """Files or folders below the results."""

    def damage(results: Path) -> None:
        for place in (results / name for name in names):
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    return damage


def torn(name: str):
    return lambda results: (results / name).write_bytes((results / name).read_bytes()[:-1])


def rewritten(name: str, change):
    return lambda results: (results / name).write_text(change((results / name).read_text()))


def recorded(name: str, change):
    return lambda results: edit(results / RECORDS[name], change)


def bounded(record: dict) -> None:
    """A number in place of an infinity."""
    row(record, "no bound")["readings"][0]["values"] = [1.0]


def said_twice(text: str) -> str:
    return text.replace('"verdict": ', '"verdict": "not reproduced", "verdict": ', 1)


def last_digit(text: str) -> str:
    digit = re.search(r"\d(?=\D*$)", text).start()
    return text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]


NO_RECORD = "record: evidence is complete, and there is no record: make it with"
OTHER_TABLE = "is not what the record's rows make (line "
DAMAGE = [  # what is done, about which artefact something is said, what, and in how many lines in all if that is sure
    # what the record says
    (recorded(TRAINED, lambda r: r["counts"].clear()), TRAINED, "counts: recorded ", None),
    (recorded(TRAINED, lambda r: r["rows"].pop()), TRAINED, "a claim that the record does not have", None),
    (recorded(TRAINED, lambda r: r["rows"][0].update(quantity="x")), TRAINED, "x: there is no claim on this any", None),
    (recorded(TRAINED, lambda r: r["rows"][0].update(reduced=INVENTED)), TRAINED, "reduced recorded {'verdict'", None),
    (recorded(TRAINED, lambda r: r["rows"].append(r["rows"][0])), TRAINED, "there is no claim on this any more", None),
    (recorded(COMPUTED, bounded), COMPUTED, "no bound: ours: ", None),
    (recorded(TRAINED, lambda r: r["evidence"].clear()), TRAINED, "the record does not have it", None),
    (recorded(TRAINED, lambda r: r["evidence"].append(r["evidence"][0])), TRAINED, "has a part of it twice", None),
    (recorded(TRAINED, lambda r: r["evidence"][0].update(folder="elsewhere")), TRAINED, "elsewhere", None),
    (recorded(TRAINED, lambda r: r["evidence"][0].update(epochs=199)), TRAINED, "", None),
    (recorded(TRAINED, lambda r: r["evidence"][0].update(seeds=[0, 1])), TRAINED, "", None),
    (recorded(TRAINED, lambda r: r["evidence"][0].update(manifest="0" * 64)), TRAINED, "", None),
    (recorded(TRAINED, lambda r: r.update(remark="more")), TRAINED, "verdict.json: has remark, which `repro", None),
    (recorded(TRAINED, lambda r: r.update(standing="all done")), TRAINED, "standing: recorded 'all done', now", None),
    (recorded(TRAINED, lambda r: r.pop("extent")), TRAINED, "extent: recorded None", None),
    (recorded(COMPUTED, lambda r: r["evidence"][0]["digests"].pop("depth4")), COMPUTED, "evidence of the record: ", 1),
    (rewritten(RECORDS[COMPUTED], lambda _: '{"verdicts": {}}'), COMPUTED, "make it again with `python main.py", None),
    (rewritten(RECORDS[COMPUTED], said_twice), COMPUTED, "('verdict' is there twice): restore", 1),
    # files of the evidence
    (torn(f"{RUN}/config.yaml"), TRAINED, f"{RUN}/config.yaml", None),
    (torn(f"{RUN}/log.csv.xz"), TRAINED, f"{RUN}/log.csv.xz", None),
    (lost(f"{RUN}/finished"), TRAINED, f"{RUN}/finished", None),
    (lost(f"{RUN}/{MANIFEST}"), TRAINED, f"{RUN}/{MANIFEST}", None),
    (lost(RUN), TRAINED, RUN, 1),
    (lost(PIECES), COMPUTED, PIECES, 3),
    (lost(f"{PIECES}/depth2.npz"), COMPUTED, f"{PIECES}/depth2.npz is missing", 1),
    # what is made of the record
    (rewritten("paper/fig-0/table.md", last_digit), COMPUTED, f"table.md {OTHER_TABLE}", 1),
    (rewritten("paper/fig-0/table.csv", lambda text: text[: text.rindex("\n", 0, -1) + 1]), COMPUTED, OTHER_TABLE, 1),
    (rewritten("paper/fig-0/table.csv", lambda text: text + "| mean |\n"), COMPUTED, OTHER_TABLE, 1),
    (lost("paper/fig-0/table.tex"), COMPUTED, "paper/fig-0/table.tex is missing", 1),
    # records that are taken away; nobody packs evidence without writing a record
    (lost(RECORDS[TRAINED]), TRAINED, f"or make it with `python main.py reproduce {TRAINED} --scale paper", 1),
    (lost(RECORDS[COMPUTED]), COMPUTED, "table.tex and no verdict.json: restore it, or make it with", 1),
    (lost("yu-tomasi/table-3"), TRAINED, NO_RECORD, None),
    (lost("paper/fig-0"), COMPUTED, NO_RECORD, None),
    (lost("paper/fig-0", f"{PIECES}/depth4.npz"), COMPUTED, f"record: no record rests on the evidence in {PIECES}", 1),
]


@pytest.mark.parametrize(("damage", "about", "words", "lines"), DAMAGE)
def test_damage_is_found_and_named(differs, results, damage, about, words, lines):
    damage(results)
    found = differs()
    assert any(f"{about}: " in line and words in line for line in found), found
    assert lines is None or len(found) == lines, found


def test_a_record_of_no_artefact_is_found(results, capsys):
    """As of one that was renamed: `report` shows its rows. The small paper is none of those that there are."""
    assert main(["verify", "--results", str(results)]) == 1
    stray = f"differs  {COMPUTED}: record: there is no such artefact: remove it, as nothing judges it"
    assert stray in differing(capsys.readouterr().out)


def test_line_breaks_of_another_system_are_no_difference(said, results):
    file = (results / RECORDS[COMPUTED]).with_name("table.md")
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert said()[0] == 0


def test_figures_are_not_compared_and_the_help_says_so(said, capsys):
    assert main(["verify", "--help"]) == 0
    assert "Figures are not compared." in capsys.readouterr().out


def test_evidence_that_another_record_rests_on_is_none(tmp_path, capsys):
    """A run that two artefacts share was kept for one of them, and is not complete."""
    leave_run(tmp_path, SEED_RUNS["depth32"], table_3, epochs=(0, 12), finished=False).identifier()
    ((its_paper, table),) = papers.find(TRAINED)
    make(Reproduction(its_paper, table, PAPER, tmp_path / "results"), tmp_path / "runs")
    assert main(["verify", "yu-tomasi", "--results", str(tmp_path / "results")]) == 0
    (tmp_path / "results" / RECORDS[TRAINED]).unlink()
    assert main(["verify", "yu-tomasi/fig-7", "--results", str(tmp_path / "results")]) == 1
    unused = "yu-tomasi/fig-7: record: no record rests on the evidence in yu-tomasi/runs/depth32"
    assert unused in capsys.readouterr().out


def found_in(original: Path, artefact: str, text: str) -> bool:
    """Whether `verify` says of another text of the record that something differs."""
    file = original / RECORDS[artefact]
    before = file.read_text()
    with pytest.MonkeyPatch.context() as patch:
        replace_paper(patch, small_paper())
        try:
            file.write_text(text)
            return main(["verify", artefact, "--results", str(original)]) == 1
        finally:
            file.write_text(before)


@settings(max_examples=75)
@given(data=st.data())
def test_any_altered_digit_of_a_record_is_found(original, data):
    """But for who rendered it: a digit that no tolerance sees is still one that the table does not have."""
    artefact = data.draw(st.sampled_from([TRAINED, COMPUTED]))
    text = (original / RECORDS[artefact]).read_text()
    begin = text.index(' "rendered": {')
    rendered = range(begin, text.index("\n }", begin))
    digits = [found.start() for found in re.finditer(r"\d", text) if found.start() not in rendered]
    place = data.draw(st.sampled_from(digits))
    other = data.draw(st.sampled_from("0123456789").filter(lambda digit: digit != text[place]))
    altered = text[:place] + other + text[place + 1 :]
    assume(_json(altered) != json.loads(text))  # a digit beyond those of a float
    assert found_in(original, artefact, altered)


def _json(text: str):
    try:
        return json.loads(text)
    except ValueError:  # 0.5 made 00.5
        return None


ODD = st.sampled_from([None, True, 0, -1, 0.5, "", "words", [], {}, [[]], {"a": 1}])


def places(tree, path=()):
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, branch in inner:
        yield from places(branch, (*path, key))


@settings(max_examples=75)
@given(data=st.data())
def test_a_record_that_somebody_broke_is_found_and_no_traceback(original, data):
    """But for who rendered it."""
    record = {"all": json.loads((original / RECORDS[COMPUTED]).read_text())}
    there = [("all", *path) for path in places(record["all"]) if path[:1] != ("rendered",)]
    *above, last = data.draw(st.sampled_from(there))
    inner = record
    for key in above:
        inner = inner[key]
    before, inner[last] = inner[last], data.draw(ODD)
    assume(not verify._same(inner[last], before, 0.0))  # 9 for 9.0
    assert found_in(original, COMPUTED, json.dumps(record["all"]))


@pytest.mark.parametrize("values", [(1.5e-16, 2e-16), (1.0, 1.5e-16), (0.0, 1.5e-16)])
@pytest.mark.parametrize("factor", [10.0, 0.1, -1.0, 0.0])
def test_a_value_near_rounding_is_compared_like_any_other(values, factor):
    claim = predicates.tested("deviation", 0.0, Within(0.0, 2.0), Sample(values))
    rows, recorded = rows_of([claim], Class.FORMULA, "paper"), rows_of([claim], Class.FORMULA, "paper")
    assert [each.difference for each in verify.compare_rows({"rows": recorded}, rows, verify.SAME)] == [""]
    recorded[0]["readings"][0]["values"][1] *= factor
    (found,) = verify.compare_rows({"rows": recorded}, rows, verify.SAME)
    assert found.difference.startswith("ours: seed 1 recorded ")
    (found,) = verify.compare_rows({"rows": recorded}, rows, verify.RECOMPUTED, verify.ROUNDING)
    assert found.difference == ""  # what is computed again leaves another rounding


@pytest.mark.parametrize("key", ["mean", "sd"])
def test_a_mean_or_sd_that_cancels_may_differ_by_the_rounding_of_its_values_and_no_more(key):
    """Values of size 1 and a mean or an sd of 1e-6: versions of numpy change 1e-16 of it, and a digit is 1e-10."""
    values = {"mean": (1.0, -1.0 + 2e-6), "sd": (1.0, 1.0 + 1.4e-6)}[key]
    claim = predicates.tested("difference", 0.0, Within(0.0, 2.0), Sample(values))
    for change, differs in ((1e-15, False), (1e-10, True)):
        rows, recorded = rows_of([claim], Class.FORMULA, "paper"), rows_of([claim], Class.FORMULA, "paper")
        recorded[0]["readings"][0][key] += change
        (found,) = verify.compare_rows({"rows": recorded}, rows, verify.SAME)
        assert found.difference.startswith(f"ours: {key} recorded ") == differs == bool(found.difference)


def test_a_computation_that_gives_other_numbers_differs(said, differs, monkeypatch):
    replace_paper(monkeypatch, small_paper(depths(factor=1.01)))
    assert said(COMPUTED)[0] == 0  # the evidence is as it was
    assert any(f"{COMPUTED}: difference (computed again): " in line for line in differs(COMPUTED, "--recompute"))


def test_what_is_trained_is_not_computed_again(said):
    code, output = said(TRAINED, "--recompute")
    assert code == 0
    assert f"note     {TRAINED}: not computed again: it rests on trained nets alone" in output
    assert "(computed again)" not in output


def mixed_paper(factor: float = 1.0) -> Paper:
    """An artefact of Yu & Tomasi's run of depth 32 and of a computation."""

    def claims(results):
        trained = results.final("depth32", "plain", "weight_mass/t/mean")
        ours = results.of(computation, lambda eight: eight["depths"][0])
        nets = predicates.tested("of a net", 0.0, Within(0.0, 9.0), trained)
        return [nets, predicates.tested("of a piece", 8.0, Within(8.0, 9.0), ours)]

    computation = Computation("depths", depths(factor), {"depth8": {"depth": 8}})
    rests_on = {"runs": (SEED_RUNS["depth32"],), "computations": (computation,)}
    mixed = Artefact("mixed", "Mixed.", claims, "None.", about=Class.TRAINED, **rests_on)
    return Paper("yu-tomasi", "A paper.", (mixed,))


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_computations_that_go_with_runs_are_computed_again_beside_what_is_kept_of_them(
    tmp_path, monkeypatch, capsys, factor
):
    mixed = mixed_paper()
    leave_run(tmp_path, SEED_RUNS["depth32"], table_3).identifier()
    asked = Reproduction(mixed, mixed.artefacts[0], PAPER, tmp_path / "results")
    make(asked, tmp_path / "runs", JobOptions(tmp_path, only={"depths"}))
    now = mixed_paper(factor)
    monkeypatch.setattr("lightning_app.reproduce.verify.find", lambda _: [(now, now.artefacts[0])])
    code = main(["verify", "yu-tomasi/mixed", "--results", str(tmp_path / "results"), "--recompute"])
    output = capsys.readouterr().out
    assert "note     yu-tomasi/mixed: its nets are not trained again: their runs are those that are kept" in output
    assert "agrees   yu-tomasi/mixed: of a net (computed again)" in output
    assert code == (factor != 1.0), output
    assert any("of a piece (computed again): ours: seed 0 recorded 8.0" in x for x in differing(output)) == bool(code)


def test_what_cannot_be_computed_again_is_a_difference_and_the_others_go_on(said, results, monkeypatch):
    """Lines that came before are there, and what comes after."""

    def compute(source, depth: int):
        raise UserError(f"expected data below {source.root}, found none.")

    replace_paper(monkeypatch, small_paper(compute))
    code, output = said(COMPUTED, TRAINED, "--recompute")
    assert code == 1
    (line,) = differing(output)
    assert line.startswith(f"differs  {COMPUTED}: computing it again: expected data below")
    lines = output.splitlines()
    assert f"agrees   {COMPUTED}: difference" in lines[: lines.index(line)]
    assert any(f"agrees   {TRAINED}: mean, t_200" in each for each in lines[lines.index(line) :])


def test_claims_that_cannot_be_judged_again_do_not_keep_others_from_it(said, results, monkeypatch):
    """As where the record of reduced scale, which is shown beside the paper's, is damaged."""

    rows = making.rows

    def damaged(evidence):
        if evidence.of.key == COMPUTED:
            raise UserError(f"{evidence.of.folder / 'reduced' / 'verdict.json'} cannot be read: restore it.")
        return rows(evidence)

    monkeypatch.setattr(making, "rows", damaged)
    code, output = said(COMPUTED, TRAINED, "--recompute")
    assert code == 1
    assert len(differing(output)) == 2  # judged again, and computed again
    assert all(f"{Path(COMPUTED) / 'reduced' / 'verdict.json'} cannot be read" in line for line in differing(output))
    assert f"agrees   {TRAINED}: mean, t_200" in output


def test_lines_come_as_they_are_found(said, results, monkeypatch, capsys):
    """Who stops it has what was found until then."""

    def compute(source, depth: int):
        raise KeyboardInterrupt

    replace_paper(monkeypatch, small_paper(compute))
    edit(results / RECORDS[COMPUTED], lambda record: record["counts"].clear())
    code, output = said(COMPUTED, "--recompute")
    assert code == 130
    assert f"differs  {COMPUTED}: counts: " in output


def test_other_parameters_than_those_of_the_record_are_named(differs, monkeypatch):
    """The claims of this checkout ask for a piece that the evidence does not have."""
    replace_paper(monkeypatch, small_paper(eighth=9))
    (line,) = differs(COMPUTED)
    other = f"{verify.OTHER}this checkout asks for pieces of other parameters: depth8"
    assert line.endswith(f"evidence in {PIECES}: {other}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["yu-tomasi/tabel-3"], "Did you mean 'yu-tomasi/table-3'?"),
        (["nobody"], "there is no paper 'nobody'."),
        (["yu-tomasi/table-1"], "expected records (verdict.json) of yu-tomasi/table-1 in"),
        (["--backwards"], "unrecognized arguments: --backwards"),
    ],
)
def test_a_mistake_is_one_message(said, words, message):
    code, output = said(*words)
    assert code == 2
    assert message in output
    assert len(output.splitlines()) == 1


def test_results_that_are_nowhere_are_one_message(tmp_path, capsys):
    assert main(["verify", "--results", str(tmp_path / "nowhere")]) == 2
    heard = capsys.readouterr()
    assert len((heard.out + heard.err).splitlines()) == 1


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """What a fresh clone has: results that are committed or staged, and no runs."""
    files = tracked("results")
    if not files:
        pytest.skip("git knows no results here")
    home = tmp_path_factory.mktemp("clone")
    for file in files:
        (home / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, home / file.relative_to(ROOT))
    return home


def committed(kind: str) -> list[Path]:
    """Records at paper scale that rest on a kind of evidence alone, "run" or "computation"."""
    records = {file.relative_to(ROOT): json.loads(file.read_text()) for file in COMMITTED}
    records = {file: record for file, record in records.items() if record["scale"] == "paper"}
    found = [file for file, record in records.items() if all(kind in part for part in record.get("evidence") or [{}])]
    assert found, f"no committed record rests on a {kind}: make the results again"
    return found


def bytes_it_rests_on(record: Path) -> int:
    folders = [ROOT / "results" / part["folder"] for part in json.loads((ROOT / record).read_text())["evidence"]]
    return sum(file.stat().st_size for folder in folders for file in folder.rglob("*"))


@pytest.mark.slow
def test_a_fresh_clone_sees_the_committed_verdicts(clone):
    listed = command("reproduce", "--list", cwd=clone)
    assert listed.returncode == 0, listed.stderr
    for file in COMMITTED:
        record = json.loads(file.read_text())
        if record["scale"] == "paper":
            (line,) = [line for line in listed.stdout.splitlines() if line.startswith(f"{record['artefact']} ")]
            for about, verdicts in record["counts"].items():
                assert f"{about}: {', '.join(f'{n} {v}' for v, n in verdicts.items())}" in line
    assert {path.name for path in clone.iterdir()} == {"results"}


@pytest.mark.slow
def test_a_fresh_clone_verifies_all_and_finds_one_altered_digit(clone, tmp_path):
    checked = command("verify", cwd=clone)
    assert checked.returncode == 0, "\n".join(differing(checked.stdout)) + checked.stderr
    shutil.copytree(clone / "results", tmp_path / "results")
    file = tmp_path / committed("computation")[0]
    record = json.loads(file.read_text())
    found = next(row for row in record["rows"] if row["readings"][0]["values"])
    found["readings"][0]["values"][0] = 1.25 + float(found["readings"][0]["values"][0])
    file.write_text(json.dumps(record))
    checked = command("verify", record["artefact"], cwd=tmp_path)
    assert checked.returncode == 1
    line, tables = differing(checked.stdout)
    assert f"{record['artefact']}: {found['quantity']}: " in line
    assert str(found["readings"][0]["values"][0]) in line
    assert f"{record['artefact']}: tables: " in tables


@pytest.mark.slow
def test_a_fresh_clone_judges_again_without_training(clone, tmp_path):
    shutil.copytree(clone / "results", tmp_path / "results")
    files = [tmp_path / min(committed(kind), key=bytes_it_rests_on) for kind in ("run", "computation")]
    records = [json.loads(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    words = (*(record["artefact"] for record in records), "--scale", "paper", "--no-train")
    made = command("reproduce", *words, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    for file, record in zip(files, records):
        again = json.loads(file.read_text())
        for key in ("rows", "evidence", "counts"):
            assert rounded(again[key]) == rounded(record[key])
    assert not (tmp_path / "runs").exists()


def rounded(content):
    """Numbers to nine digits: a fitted line has other last ones on another processor."""
    return json.loads(json.dumps(content), parse_float=lambda number: f"{float(number):.9g}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("165m", 9900), ("2h30m", 9000), ("90", 90), ("90s", 90), ("1h1m1s", 3661), ("2h", 7200)]
)
def test_times(text, seconds):
    assert reproducing._seconds(text) == seconds


@pytest.mark.parametrize("text", ["nonsense", "2d", "m", "-5m", "1.5h", "2h 30m", "30m2h", "2h30", "0", "0m"])
def test_what_is_no_time_is_an_error_message(text, capsys):
    assert main(["reproduce", "li-et-al/fig-4", f"--for={text}"]) == 2
    said = capsys.readouterr().err
    assert "--for: expected a time like 165m" in said
    assert len(said.splitlines()) == 1


@pytest.fixture
def deaf():
    """A signal that comes too early or too late does not end the tests."""
    earlier = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, earlier)


def forty_pieces(monkeypatch, home: Path, last: int, stop) -> None:
    """The small paper, of depths 2 to 41, in a folder of its own; at one depth something happens."""

    def compute(source, depth: int):
        if depth == last:
            stop()
        return depths()(source, depth)

    replace_paper(monkeypatch, small_paper(compute, pieces=range(2, 42)))
    monkeypatch.chdir(home)


def pieces(home: Path) -> int:
    return len([*(home / "results" / PIECES).glob("*.npz")])


def test_for_a_time_computes_what_fits_into_it_and_ends_well(monkeypatch, tmp_path, deaf, capsys):
    """However busy the machine: the time limit is reached as soon as a piece begins."""
    up, told, asked = threading.Event(), threading.Event(), []
    words = ["paper/fig-0", "--scale", "paper", "--for", "2s"]

    class Told(threading.Timer):
        def run(self) -> None:
            asked.append(self.interval)
            if not up.wait(60):  # the command has failed before
                return
            self.function()
            told.set()

    def wait() -> None:
        up.set()
        told.wait(60)

    monkeypatch.setattr(threading, "Timer", Told)
    forty_pieces(monkeypatch, tmp_path, 5, wait)
    assert main(["reproduce", *words]) == 0
    assert pieces(tmp_path) == 3
    assert "time limit reached: saving and packing" in capsys.readouterr().out
    record = json.loads((tmp_path / "results" / RECORDS[COMPUTED]).read_text())
    assert len(record["evidence"][0]["files"]) == 3 and "3 of 40 pieces" in record["standing"]
    assert main(["verify", "paper/fig-0"]) == 0
    shutil.rmtree(tmp_path / "runs")  # as in a fresh clone: it goes on from what is kept
    up.clear(), told.clear(), capsys.readouterr()
    forty_pieces(monkeypatch, tmp_path, 9, wait)
    assert main(["reproduce", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"artefacts": []}  # none is complete
    assert pieces(tmp_path) == 7 and asked == [1.75, 1.75]  # an eighth is for packing


def test_enough_time_is_no_end(monkeypatch, tmp_path, deaf, capsys):
    replace_paper(monkeypatch, small_paper())
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "paper/fig-0", "--scale", "paper", "--for", "1h", "--json"]) == 0
    answer, said = capsys.readouterr()
    assert "time limit reached" not in said
    (found,) = json.loads(answer)["artefacts"]
    assert found["artefact"] == "paper/fig-0" and found["rows"] and found["standing"]
    assert pieces(tmp_path) == 3
    assert not any(
        isinstance(thread, threading.Timer) and not thread.finished.is_set() for thread in threading.enumerate()
    )


def test_a_signal_keeps_what_was_computed_and_ends_with_its_own_code(monkeypatch, tmp_path, deaf):
    forty_pieces(monkeypatch, tmp_path, 12, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["reproduce", "paper/fig-0", "--scale", "paper"]) == 128 + signal.SIGTERM
    assert pieces(tmp_path) == 10
    record = json.loads((tmp_path / "results" / RECORDS[COMPUTED]).read_text())
    assert len(record["evidence"][0]["files"]) == 10
    assert main(["verify", "paper/fig-0"]) == 0


def test_a_computation_that_fails_says_why(monkeypatch, tmp_path, capsys):
    def compute(source, depth: int):
        if depth == 8:
            raise UserError("no depth 8 here.")
        return depths()(source, depth)

    replace_paper(monkeypatch, small_paper(compute))
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "paper/fig-0", "--scale", "paper"]) == 2
    assert "no depth 8 here" in capsys.readouterr().err
