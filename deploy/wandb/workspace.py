"""The W&B dashboard as code: an experiment's runs, one per seed, are drawn as one mean with its spread.

    pip install -e '.[deploy]'
    python deploy/wandb/workspace.py ENTITY --project skipscope     saves a new view of the project; needs an account

Runs are grouped by group, data, architecture, learning rate and weight decay. This fits the job arrays, the sweeps and the
logger's `run_per: seed`, which make one run per seed. Runs that differ in something else need a `run.group` of their own. For a
job of several seeds in one run (`run_per: job`) the curves of each seed, and of the mean, minimum and maximum over seeds, are in
sections of their own. Panels name keys of the depth-20 nets; a test trains these and finds every key in what W&B recorded.
Effective depth exists only for residual nets, lambda and what is absorbed only for nets with BatchNorm: in a project with
both kinds, some nets have no line in these panels.

For the Hessian's condition number only the lower end of its interval has a panel. The upper end is infinite as long as the
percentile in its denominator may be 0, as for most nets: W&B then records "Infinity", through which no line can be drawn, and
the mean over seeds leaves infinite values out, so that it is no upper end. The report shows both ends.
"""

import argparse
from collections.abc import Iterable, Sequence

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb.errors import Error

__all__ = ["workspace"]

EXPERIMENT = (  # a bank has no `model.net`: its arms tell it from others
    "run.group",  # not `run.name`: each task of a job array has its own
    "data.class_path",
    "model.net.class_path",
    "model.net.init_args.depth",
    "model.net.init_args.residual",
    "model.arms.residual.net.class_path",
    "model.arms.residual.net.init_args.depth",
    "model.optimizer.init_args.lr",
    "model.weight_decay",
)
CURVES = {
    "Test error": "test/error",
    "Training risk L (nats)": "train/risk",
    "Test risk (nats)": "test/risk",
    "Training error": "train/error",
    "Cost C as the tables print it (nats)": "train/cost_paper",
}
MASSES = {
    "ID mass of t = T(w)": "weight_mass_transferred/id_entries",
    "ID mass of w": "weight_mass/id_entries",
    "Mass of |t| >= 0.25": "weight_mass_transferred/large",
    "Mass of |w| >= 0.25": "weight_mass/large",
    "Mass of w": "weight_mass/all",
    "ID entries of t above 0.7": "weight_mass_transferred/above_07",
}
CURVATURE = {  # with the keys that belong into one panel
    "Largest eigenvalue of H": ("hessian/top1",),
    "Most negative eigenvalue of H": ("hessian/bottom1",),
    "Trace of H": ("hessian/trace",),
    "Share of negative eigenvalues, between": ("hessian/index_low", "hessian/index_high"),
    "Condition number (10th percentile), at least": ("hessian/condition10_low",),
    "Eigenvalues that did not converge": ("hessian/unconverged",),
    "Leading eigenvector: share on ID entries": ("hessian/id/leading",),
}
DEPTHS = {
    "d_eff over the longest path": "depth/relative",
    "d_eff: effective depth of the outputs (weight layers)": "depth/effective",
    "d_coh: the same, coherent": "depth/coherent",
    "d_grad: effective depth of the gradient": "depth/gradient",
    "d_eff of paths from the input": "depth/effective_input",
    "Share of paths that start at a bias": "depth/bias_share",
}
LAMBDAS = {
    "Mean |lambda|": "bn_lambda/mean_abs",
    "||lambda||, mean over layers": "bn_lambda/l2",
    "|lambda| / sqrt(var + eps)": "bn_lambda/scale",
    "Negative entries of lambda": "bn_lambda/negative",
    "Sign changes of lambda": "bn_lambda/sign_changes",
}
NORMS = {
    "Norm of a layer's weights, mean": "weight_norm/own",
    "Norm of all weights": "weight_norm/total",
}
ABSORBED = {"Norm with BatchNorm absorbed, mean": "weight_norm/absorbed"}
FORCES = {  # on lambda: shares of its layers
    "|lambda| driven up (Theorem 3)": "drive/positive",
    "|lambda| pushed up by gradient descent": "drive/positive_first",
    "Theorem 3 agrees with what |lambda| did": "drive/agrees",
    "Gradient descent's push agrees with it": "drive/agrees_first",
}
FORCES_ON_SCALE = {
    "Push of gradient descent on C": "drive/scale/first_order",
    "Its change, the driving force on C (Theorem 4)": "drive/scale/second_order",
    "Change of C since the last measurement": "drive/scale/observed",
}
BY_LAYER = {  # title -> name of a number of each layer, and of how many layers
    "Mean |lambda|": ("bn_lambda/{}/mean_abs", 19),
    "||lambda||": ("bn_lambda/{}/l2", 19),
    "Norm with BatchNorm absorbed": ("weight_norm/{}/absorbed", 19),
    "Norm of the weights": ("weight_norm/{}/own", 20),
}
READINGS = {
    "identity in A x, not in the norm (the paper)": "median",
    "identity in both": "median_transferred",
    "identity in neither": "median_branch",
}
BN_MODES = {"running statistics": "interlayer", "each sample's own statistics": "interlayer_batch1"}
LAYERS = [f"layer{number:02d}" for number in range(1, 21)]
BLOCKS = [f"block{number:02d}" for number in range(1, 10)]
ARMS = ("plain", "residual")
ARM_PARTS = ("", *(f"/{arm}" for arm in ARMS))  # what a key has after it: nothing in a run of one arm, else the arm
ONE_RUN = "Several seeds in one run"


def workspace(entity: str, project: str = "skipscope") -> ws.Workspace:
    """The dashboard; building it needs no account, ``save()`` does."""
    return ws.Workspace(
        entity=entity,
        project=project,
        name="SkipScope: seeds",
        sections=[
            _section("Learning curves", [*_curves(CURVES), _error_against_risk()]),
            _section("Plain and residual in one run", [_arms(title, key) for title, key in CURVES.items()]),
            _section("Weight mass", _curves(MASSES)),
            _section("Layer cushions", _cushions()),
            _section("Interlayer cushions", _interlayer_cushions()),
            _section("Curvature", [_over_seeds(title, list(keys)) for title, keys in CURVATURE.items()]),
            _section("Effective depth", _curves(DEPTHS)),
            _section("BatchNorm's lambda and weight norms", [*_curves(LAMBDAS | NORMS | ABSORBED), *_by_layer()]),
            _section("Driving force", _curves(FORCES | FORCES_ON_SCALE)),
            _section(f"{ONE_RUN}: learning curves", _spreads(CURVES)),
            _section(f"{ONE_RUN}: weight mass", _spreads(MASSES)),
            _section(f"{ONE_RUN}: layer cushions", [*_spreads(_layer_10()), *_mean_profiles()]),
            _section(f"{ONE_RUN}: curvature", _spreads(_curvature_keys())),
            _section(f"{ONE_RUN}: effective depth", _spreads(DEPTHS, ("", "/residual"))),
            _section(f"{ONE_RUN}: lambda and weight norms", [*_spreads(NORMS), *_spreads(LAMBDAS | ABSORBED, ("",))]),
            _section(f"{ONE_RUN}: driving force", [*_spreads(FORCES_ON_SCALE), *_spreads(FORCES, ("",))]),
            _section(f"{ONE_RUN}: each seed", [_each_seed(title, key) for title, key in (CURVES | MASSES).items()]),
        ],
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=100),
        runset_settings=ws.RunsetSettings(groupby=[ws.Config(key) for key in EXPERIMENT]),
    )


def _section(name: str, panels: Iterable[wr.LinePlot | wr.BarPlot]) -> ws.Section:
    return ws.Section(name=name, panels=list(panels), is_open=True)


def _curves(keys: dict[str, str]) -> list[wr.LinePlot]:
    return [_over_seeds(title, [key]) for title, key in keys.items()]


def _over_seeds(title: str, keys: list[str], x: str = "epoch") -> wr.LinePlot:
    """Mean of each group of runs and one standard deviation around it, nothing smoothed."""
    return wr.LinePlot(
        title=title, x=x, y=keys, groupby_aggfunc="mean", groupby_rangefunc="stddev", smoothing_type="none"
    )


def _error_against_risk() -> wr.LinePlot:
    """Figure 2's claim: at the same training risk, which net has the smaller test error?"""
    return _over_seeds("Test error against training risk", ["test/error"], x="train/risk")


def _arms(title: str, key: str) -> wr.LinePlot:
    return _over_seeds(title, [f"{key}/{arm}" for arm in ARMS])


def _cushions() -> list[wr.LinePlot | wr.BarPlot]:
    """Layer 10 over the epochs, as in the paper, and all layers at the end, each in all three readings."""
    profiles = [
        _profile(f"All layers, {reading}", [f"cushion/{layer}/{field}" for layer in LAYERS])
        for reading, field in READINGS.items()
    ]
    return [*_curves(_layer_10()), *profiles]


def _layer_10() -> dict[str, str]:
    return {f"Layer 10, {reading}": f"cushion/layer10/{field}" for reading, field in READINGS.items()}


def _interlayer_cushions() -> list[wr.LinePlot | wr.BarPlot]:
    """Block 5 of 9 over the epochs, as in the paper, and all blocks at the end."""
    curves = {f"Block 5, {mode}": f"{prefix}/block05/median" for mode, prefix in BN_MODES.items()}
    profiles = [
        _profile(f"All blocks, {mode}", [f"{prefix}/{block}/median" for block in BLOCKS])
        for mode, prefix in BN_MODES.items()
    ]
    return [*_curves(curves), *profiles]


def _curvature_keys() -> dict[str, str]:
    """Each key with a title of its own: ends of an interval have a spread each."""
    return {
        title if len(keys) == 1 else f"{title}, {key.rsplit('_')[-1]} end": key
        for title, keys in CURVATURE.items()
        for key in keys
    }


def _by_layer() -> list[wr.BarPlot]:
    """All layers at the end."""
    return [
        _profile(f"All layers, {title}", [name.format(layer) for layer in LAYERS[:count]])
        for title, (name, count) in BY_LAYER.items()
    ]


def _spreads(keys: dict[str, str], parts: Sequence[str] = ARM_PARTS) -> list[wr.LinePlot]:
    """For each key, over the seeds of one run: mean with minimum and maximum, and the standard deviation."""
    statistics = {"mean, minimum, maximum": ("mean", "min", "max"), "standard deviation": ("sd",)}
    return [
        _over_seeds(f"{title}: {words}", [f"{key}{part}/{name}" for part in parts for name in names])
        for title, key in keys.items()
        for words, names in statistics.items()
    ]


def _mean_profiles() -> list[wr.BarPlot]:
    return [
        _profile(f"All layers of {arm}, {reading}", [f"cushion/{layer}/{field}/{arm}/mean" for layer in LAYERS])
        for arm in ARMS
        for reading, field in READINGS.items()
    ]


def _each_seed(title: str, key: str) -> wr.LinePlot:
    """A line a seed and arm, whichever there are."""
    return wr.LinePlot(
        title=title,
        x="epoch",
        metric_regex=rf"^seed/\d+/{key}(/\w+)?$",
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        smoothing_type="none",
    )


def _profile(title: str, keys: list[str]) -> wr.BarPlot:
    """The last value of each key, side by side."""
    return wr.BarPlot(title=title, metrics=keys, groupby_aggfunc="mean", groupby_rangefunc="stddev")


def main() -> None:
    parser = argparse.ArgumentParser(description="Save SkipScope's dashboard as a new view of a W&B project.")
    parser.add_argument("entity", help="user or team")
    parser.add_argument("--project", default="skipscope")
    options = parser.parse_args()
    try:
        print(workspace(options.entity, options.project).save().url)
    except Error as error:  # no account, no project, no network
        parser.exit(2, f"error: the dashboard cannot be saved: {error}\n")


if __name__ == "__main__":
    main()
