"""Golden values of the golden net, written down: what drifts in silence between versions of the libraries shows here.

Rewrite them, after a change that is meant to change them, with

    python -m tests.golden.stored
"""

import json
import tempfile
from importlib.metadata import version
from pathlib import Path

from lightning_app.runs import RunFolder
from tests.golden.subject import measure_golden

__all__ = ["FILE", "KEYS", "read_measured"]

FILE = Path(__file__).with_name("resnet10.json")
LIBRARIES = ("torch", "torchvision", "numpy", "scipy")
KEYS = (
    *("weight_mass/all", "weight_mass/large", "weight_mass/norm"),
    *("bn_lambda/mean_abs", "bn_lambda/scale", "weight_norm/absorbed", "weight_norm/total"),
    *("probe/risk", "cushion/layer01/median", "cushion/layer10/median", "cushion/layer10/median_operator"),
    *("cushion/layer12/minimum", "cushion/layer13/mean"),
    *("interlayer/layer1.0/gain", "interlayer/layer4.0/median", "interlayer_batch1/layer2.0/gain"),
    *("interlayer_batch1/layer4.0/mean_hw", "noise/contraction/maximum", "noise/response_0.1"),
    *("noise_absolute/risk_0.3", "noise/layer08/response_0.1", "noise/smoothness/rho"),
    *("noise/smoothness/rho_linearisation", "noise/bound/log10"),
    *("depth/effective", "depth/effective_input", "depth/coherent", "depth/gradient", "depth/bias_share"),
    *("drive/layer05/first_order", "drive/layer05/second_order", "drive/scale/second_order"),
    *("hessian/top1", "hessian/top2", "hessian/trace", "hessian/frobenius"),
)


def read_measured(run: RunFolder) -> dict:
    """Key -> number or array, all that was measured of the one net."""
    rows = run.log()
    arrays = (run.arrays(0, file.stem) for file in run.path.glob("measurements/epoch=0000/*.npz"))
    named = {key.removeprefix("net/"): values for of_family in arrays for key, values in of_family.items()}
    return dict(zip(rows["name"], rows["value"])) | named


def rewrite(measured: dict) -> None:
    """Put the values of a measurement into the file, with the versions that they are of."""
    content = {
        "versions": {name: version(name) for name in LIBRARIES},
        "values": {key: float(measured[key]) for key in KEYS},
    }
    FILE.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        rewrite(read_measured(measure_golden(Path(folder))))
