"""One real ``python main.py measure`` of the golden net, in float64, that all golden tests read; and their witnesses' net."""

import pytest
import torch

from lightning_app.runs import RunFolder
from tests.golden.by_hand import Resnet10
from tests.golden.subject import LABELS, golden_data, golden_net, measure_golden


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> RunFolder:
    return measure_golden(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def measured(run) -> dict:
    """Key -> number or array, all that was measured of the one net."""
    rows = run.log()
    arrays = (run.arrays(0, file.stem) for file in run.path.glob("measurements/epoch=0000/*.npz"))
    named = {key.removeprefix("net/"): values for of_family in arrays for key, values in of_family.items()}
    return dict(zip(rows["name"], rows["value"])) | named


@pytest.fixture(scope="session")
def net() -> torch.nn.Module:
    return golden_net()


@pytest.fixture(scope="session")
def state(net) -> dict[str, torch.Tensor]:
    return net.state_dict()


@pytest.fixture(scope="session")
def hand(state) -> Resnet10:
    return Resnet10(state)


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> torch.Tensor:
    """What the measures saw. The app normalises pictures in float32, and that is no measure: so it is taken from there."""
    ((pictures, _),) = golden_data(tmp_path_factory.mktemp("golden") / "pictures").probe_loader()
    return pictures.double()


@pytest.fixture(scope="session")
def labels() -> torch.Tensor:
    return torch.tensor(LABELS)
