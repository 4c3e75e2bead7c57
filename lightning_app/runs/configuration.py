"""Configurations of runs compared: their leaves, and which of these decide what is computed, not only where or how fast."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

# Where and how fast a run computes: options that a user may add to a run that `reproduce` has planned.
MACHINE_OPTIONS = (
    *("trainer.accelerator", "trainer.devices", "trainer.strategy", "trainer.num_nodes", "trainer.logger"),
    "trainer.benchmark",  # whether cuDNN tries its kernels
    *("model.backend", "model.compile", "model.channels_last"),
    *("save_checkpoint.every_n_epochs", "save_checkpoint.keep_every_n_epochs"),
    *(f"data.init_args.{key}" for key in ("eval_batch_size", "compile", "channels_last")),
)
ROOT = "data.init_args.root"
# Beginnings of keys that may differ between seeds of one thing: these, the seed, and the run's own name and files.
NOT_COMPARED = (
    *MACHINE_OPTIONS,
    *("model.seeds", "seed_everything", "hyperparameters.seed", "run.", "ckpt_path", "save_checkpoint.", ROOT),
    *("trainer.enable_", "trainer.log_every_n_steps"),
)
# Of each the values with which all of the data is used; Lightning takes 1 for one batch and 1.0 for all.
ALL_DATA = {
    "trainer.limit_train_batches": ("None", "1.0"),
    "trainer.limit_val_batches": ("None", "1.0"),
    "trainer.overfit_batches": ("None", "0", "0.0"),
    "data.init_args.train_limit": ("None",),
    "data.init_args.test_limit": ("None",),
}
LIMITS = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time")  # of a run, which may be raised


def compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run computes: the leaves of its configuration but for seed and machine, by dotted key."""
    return {key: value for key, value in flatten(config) if not key.startswith(NOT_COMPARED)}


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Of two runs' options by dotted key (`compared`), those that differ, with both values; None where there is none.

    >>> differing({"model.lr": 0.1, "model.loss": "squared_error"}, {"model.lr": 0.2, "model.loss": "squared_error"})
    {'model.lr': (0.1, 0.2)}
    """
    return {key: (a.get(key), b.get(key)) for key in keys_that_differ([a, b])}


def keys_that_differ(options: Collection[Mapping[str, Any]], absent: Any = None) -> list[str]:
    """Dotted keys whose values are not the same in all of these options, in their order; one that is absent has that value.

    >>> keys_that_differ([{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}, {"lr": 0.1}])
    ['seed']
    """
    keys = dict.fromkeys(key for values in options for key in values)
    return [key for key in keys if len({repr(values.get(key, absent)) for values in options}) > 1]


def changed(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Options with which a run goes on otherwise than before, but for limits that may be raised: dotted key -> both values.

    >>> changed({"model": {"lr": 0.1}, "trainer": {"max_epochs": 2}}, {"model": {"lr": 0.2}, "trainer": {"max_epochs": 3}})
    {'model.lr': (0.1, 0.2)}
    """
    found = differing(compared(earlier), compared(now)) if earlier else {}
    return {key: values for key, values in found.items() if key not in LIMITS}


def changes(found: Mapping[str, tuple[Any, Any]], what: str = "resumed with other options than before") -> str:
    """The same in words, empty where nothing has changed.

    >>> changes({"model.lr": (0.1, 0.2)})
    'resumed with other options than before: model.lr 0.1 -> 0.2'
    """
    said = "; ".join(f"{key} {before} -> {after}" for key, (before, after) in found.items())
    return f"{what}: {said}" if said else ""


def limits_on_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options that limit the data that is trained or evaluated on, by dotted key.

    >>> limits_on_data({"trainer": {"limit_train_batches": 1.0, "limit_val_batches": 1, "overfit_batches": 0.0}})
    {'trainer.limit_val_batches': 1}
    """
    found = dict(flatten(config))
    return {key: found[key] for key, whole in ALL_DATA.items() if key in found and repr(found[key]) not in whole}


def flatten(node: Any, path: str = "", lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Leaves of nested dicts and lists as (dotted key, value); without ``lists`` these are leaves too.

    >>> dict(flatten({"model": {"betas": [0.9, 0.99], "norm": {}}}))
    {'model.betas.0': 0.9, 'model.betas.1': 0.99, 'model.norm': {}}
    """
    if isinstance(node, dict | list if lists else dict) and node:
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from flatten(child, f"{path}.{key}" if path else str(key), lists)
    elif path:
        yield path, node


def layered(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration on top of another. A class that replaces another one brings its own arguments, as in jsonargparse."""
    result = dict(base)
    if over.get("class_path", base.get("class_path")) != base.get("class_path"):
        result.pop("init_args", None)
    for key, value in over.items():
        deep = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = layered(result[key], value) if deep else value
    return result
