"""Private parts of libraries that the code replaces or reads: each is named here, and a test fails when one is gone.

Lightning, jsonargparse, wandb and CPython promise nothing about names with an underscore. An upgrade that drops one must fail
here, with its name, and not by a handler that is silently never called.
"""

import argparse
import ast
import atexit
import inspect
import subprocess
import threading
from importlib import import_module
from pathlib import Path

import jsonargparse
import pytest
import pytorch_lightning as pl
import torch
import torchmetrics
from lightning_fabric.utilities.distributed import DistributedSamplerWrapper
from pytorch_lightning.cli import LightningCLI
from pytorch_lightning.loggers import WandbLogger
from torch.utils.data import SequentialSampler

from lightning_app.cli.trainer import Trainer, replace_method
from tests.helpers import ROOT, trainer

PARTS = {  # name -> where it is, as an object to look it up in
    "_signal_connector": lambda: trainer(),
    "register_signal_handlers": lambda: trainer()._signal_connector,
    "_checkpoint_connector": lambda: trainer(),
    "_restore_modules_and_callbacks": lambda: trainer()._checkpoint_connector,
    "restore_training_state": lambda: trainer()._checkpoint_connector,
    "_broadcast_sigterm_tensor": lambda: trainer().fit_loop.epoch_loop,
    "_batches_that_stepped": lambda: trainer().fit_loop.epoch_loop,
    "_should_check_val_fx": lambda: trainer().fit_loop.epoch_loop,
    "_iteration_based_training": lambda: trainer().fit_loop,
    "_launch_process_observer": lambda: import_module("pytorch_lightning.strategies.launchers.subprocess_script"),
    "_SubprocessScriptLauncher": lambda: import_module("pytorch_lightning.strategies.launchers.subprocess_script"),
    "_trainer": lambda: pl.LightningModule(),
    "_on_before_batch_transfer": lambda: pl.LightningModule,
    "_can_stop_early": lambda: trainer().fit_loop,
    "_data_source": lambda: trainer().fit_loop,
    "_data_fetcher": lambda: trainer().fit_loop,
    "_shutdown_workers_and_reset_iterator": lambda: import_module("pytorch_lightning.utilities.combined_loader"),
    "_apply": lambda: torchmetrics.MeanMetric(),
    "_sampler": lambda: DistributedSamplerWrapper(SequentialSampler([0]), num_replicas=1, rank=0).dataset,
    "_set_params_and_buffers_to_ignore_for_model": lambda: torch.nn.parallel.DistributedDataParallel,
    "_layer_sync": lambda: pl.strategies.DDPStrategy(),
    "_generate_state_key": lambda: pl.Callback,
    "_get": lambda: LightningCLI,
    "_prepare_subcommand_parser": lambda: LightningCLI,
    "_prepare_subcommand_kwargs": lambda: LightningCLI,
    "_parse_ckpt_path": lambda: LightningCLI,
    "_set_seed": lambda: LightningCLI,
    "_dump_config": lambda: LightningCLI,
    "_wandb_init": lambda: WandbLogger(offline=True),
    "_typehints": lambda: jsonargparse,
    "resolve_class_path_by_name": lambda: import_module("jsonargparse._typehints"),
    "get_yaml_default_loader": lambda: import_module("jsonargparse._loaders_dumpers"),
    "_subcommands_action": lambda: jsonargparse.ArgumentParser(),
    "_name_parser_map": lambda: jsonargparse.ArgumentParser().add_subcommands(),
    "_get_help_string": lambda: jsonargparse.DefaultHelpFormatter,
    "_actions": lambda: argparse.ArgumentParser(),
    "_defaults": lambda: torchmetrics.MeanMetric(),
    "_buffers": lambda: torch.nn.Module(),
    "_post_accumulate_grad_hooks": lambda: torch.nn.Parameter(torch.zeros(1)),
    "_backward_hooks": lambda: torch.nn.Parameter(torch.zeros(1)),
    "_forward_pre_hooks": lambda: torch.nn.Module(),
    "_tensor_name": lambda: torch.nn.utils.prune.identity(torch.nn.Linear(1, 1), "weight")._forward_pre_hooks.popitem()[
        1
    ],
    "_parameters": lambda: torch.nn.Module(),
    "_modules": lambda: torch.nn.Module(),
    "_compiled_call_impl": lambda: torch.nn.Module(),
    "_orig_mod": lambda: torch.compile(torch.nn.Linear(1, 1)),
    "_conv_forward": lambda: torch.nn.Conv2d,
    "_version": lambda: torch.zeros(1),
    "_C": lambda: torch,
    "_dynamo": lambda: torch.compile and import_module("torch._dynamo") and torch,
    "_foreach_add_": lambda: torch,
    "_foreach_copy_": lambda: torch,
    "_foreach_norm": lambda: torch,
    "_exit": lambda: import_module("os"),
    "_execute_child": lambda: subprocess.Popen,
    "_child_created": lambda: subprocess.Popen,
    "_close_pipe_fds": lambda: subprocess.Popen,
    "_run_exitfuncs": lambda: atexit,
    "_shutdown": lambda: threading,
}


@pytest.mark.parametrize("name", PARTS)
def test_each_private_part_is_still_there(name):
    owner = PARTS[name]()
    what = owner.__name__ if inspect.isclass(owner) or inspect.ismodule(owner) else type(owner).__name__
    assert hasattr(owner, name), f"{what}.{name} is gone: find what replaces it, and everything here that uses it"


def test_no_other_private_part_is_used():
    """Attributes with an underscore that no file of ours defines are somebody else's."""
    ours, used = {"_asdict", "_fields"}, {}  # of named tuples, which are public
    files = [*ROOT.glob("lightning_app/**/*.py"), *ROOT.glob("callbacks/*.py"), ROOT / "tests" / "forked.py"]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                    ours.add(node.attr)
                used.setdefault(node.attr, f"{file.relative_to(ROOT)}:{node.lineno}")
    others = {name: place for name, place in used.items() if name not in ours | PARTS.keys()}
    assert not others, f"name these in PARTS, or do without: {others}"
    by_text = {name for name in PARTS.keys() - used.keys() if any(name in file.read_text() for file in files)}
    assert PARTS.keys() == {*used} & PARTS.keys() | by_text, "take out of PARTS what nothing uses"


def test_the_arguments_of_popens_private_method_are_in_the_known_order():
    """tests/forked.py takes them by position."""
    names = [*inspect.signature(subprocess.Popen._execute_child).parameters]
    assert names[:7] == ["self", "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd"]
    assert names[7] == "env" and names[11:17] == ["p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"]
    assert names[-2] == "start_new_session" and Path("/proc/self/task").exists()


def test_a_method_that_is_gone_is_not_replaced_silently():
    with pytest.raises(AttributeError, match=r"Trainer\.no_such_method is gone"):
        replace_method(trainer(), "no_such_method", lambda: None)
    made = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert made.fit_loop.epoch_loop._broadcast_sigterm_tensor == made._stop_together
    assert made._signal_connector.register_signal_handlers() is None
