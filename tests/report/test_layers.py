"""The section on layers: numbers by layer, reasons where there are none, and what could not be measured."""

import pytest

from lightning_app.report.exports import write_exports
from lightning_app.report.page_data import gather
from lightning_app.report.sections.layers import of_whole_nets, section
from lightning_app.runs import LayerRow, Row, RunFolder

LAYERS = [
    LayerRow("net", "layer01", "stem", "Conv2d", (4, 3, 3, 3), ""),
    LayerRow("net", "layer02", "twice", "Conv2d", (4, 4, 3, 3), "the net calls it 2 times, a cushion is of one call"),
    LayerRow("net", "layer03", "head", "Linear", (2, 4), ""),
    LayerRow("net", "", "<script>", "Parameter", (1, 4), "a weight that no layer holds"),
]
NUMBERS = {
    "cushion/layer01/median": 0.25,
    "cushion/layer03/median": float("nan"),
    "weight_norm/layer01/own": 2.5,
    "interlayer/layer1.0/median": 1.5,
    "interlayer_batch1/layer1.0/median_hw": 0.5,
    "hessian/top1": 3.0,
    "weight_mass/all": 7.0,
}


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.append(Row("net", 2, 8, name, value) for name, value in NUMBERS.items())
    folder.save_layers(LAYERS)
    folder.add_notes(["EffectiveDepth logs nothing: it calls sin", "DrivingForce cannot measure 'net'"])
    return folder


def texts(table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def test_every_layer_is_in_one_table_with_its_numbers_or_its_reason(run):
    made = section(gather([run]))
    measured, without, blocks = made.blocks
    assert texts(measured) == [["stem", "layer01", "Conv2d", "4x3x3x3", "0.2500", "2.500", "–", "–"]]
    assert [row[0] for row in texts(without)] == ["twice", "head", "<script>"]
    assert texts(without)[0][-1].startswith("the net calls it 2 times")
    assert "weights are all 0" in texts(without)[1][-1]
    assert texts(blocks) == [["layer1.0", "1.500", "–", "–", "0.5000"]]
    assert made.notices == ["run: EffectiveDepth logs nothing: it calls sin", "run: DrivingForce cannot measure 'net'"]
    assert made.lead.startswith("Layers stand in the order") and "Interlayer cushion of a block" in made.lead
    assert not any(table.caption for table in made.blocks)  # of several arms each would repeat it


def test_what_the_columns_are_stands_in_the_file_of_every_table(run, tmp_path):
    made = section(gather([run]))
    write_exports([made], tmp_path / "files", ["latex"])
    files = [*(tmp_path / "files").iterdir()]
    assert len(files) == 3 and all("Frobenius norm of the weights as trained" in file.read_text() for file in files)


def test_blocks_are_explained_where_there_are_some(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.append([Row("net", 2, 8, "weight_norm/layer01/own", 2.5)])
    folder.save_layers(LAYERS[:1])
    assert "Interlayer" not in section(gather([folder])).lead


def test_numbers_of_whole_nets_leave_layers_and_blocks_out(run):
    found = [[cell.text for cell in row] for row in of_whole_nets(gather([run]).nets)]
    assert found == [["hessian/top1", "3"], ["weight_mass/all", "7"]]


def test_runs_that_wrote_no_layers_down_have_no_section(tmp_path):
    folder = RunFolder(tmp_path / "old")
    folder.append([Row("net", 0, 0, "hessian/top1", 1.0)])
    assert section(gather([folder])) is None
