"""Trains a bank of image classifiers side by side: one optimizer, one run, any networks.

The cost of a member is C = L + lambda/2 ||w - centre||^2, with the risk L the mean cross-entropy (or squared error, see
`cost`). Members share nothing but the optimizer object, whose update is elementwise, so each is the same net as if
trained alone.
"""

import logging
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lightning_app.common.batch_plan import BatchPlan
from lightning_app.common.calls import TRAINED, adapt, pair_of
from lightning_app.common.errors import DivergedError, UserError
from lightning_app.common.isolation import Float32, evaluating, trained_weights, use_float32
from lightning_app.common.seeds import parse_seeds
from lightning_app.measures.core.losses import Loss, LossOfMaps, ReturnedLoss, counts_of, loss_of_net
from lightning_app.modules import optimizing, resume
from lightning_app.modules.backends import Answer, BackendName, Pass, one_by_one, possible, side_by_side
from lightning_app.modules.bad_batches import explained
from lightning_app.modules.cost import Decays, LossName, Penalty, RiskAndError, add_gradients, loss_named
from lightning_app.modules.dry_run import check_outputs, choose_memory_format
from lightning_app.modules.members import (
    Arm,
    ByMember,
    Centre,
    Member,
    NetFactory,
    SeedSharding,
    build_members,
    exchange,
    shares,
    twin,
)
from lightning_app.modules.nonfinite import FiniteChecks, not_finite

if TYPE_CHECKING:  # where there is no GPU, `in_graphs` is never imported
    from lightning_app.modules.in_graphs import StepsInGraphs

log = logging.getLogger(__name__)

_NO_SAMPLES = (torch.zeros(()), torch.empty(0, 1), torch.empty(0, dtype=torch.long))  # a batch that adds nothing
COMPILED_VARIANTS = 64  # arms x modes x batch shapes of one code object; beyond the limit torch falls back to eager
FINITE_EVERY = 50  # steps between looks at losses, gradients and weights on a GPU, which has to be waited for


class ImageClassifier(pl.LightningModule):
    """A bank of classifiers of images, vectors or tokens: one net (member) for each arm and seed.

    Args:
        optimizer: gets the parameters of all members. Its own weight_decay must be 0: see ``weight_decay``.
        net: the network, if there is one arm: anything that maps the data's images (or vectors) to logits (B, classes).
        arms: several arms by name instead of ``net``.
        scheduler: learning rate scheduler, or a list of schedulers used one after the other (warm-up, then cosine).
        scheduler_milestones: for a list, when each scheduler but the first begins, in epochs or steps.
        scheduler_interval: step the scheduler after each "epoch" or each "step".
        gradient_clip_val: clip the gradient of each net's risk to this, before the penalty's gradient is added; None: no
            clipping.
        gradient_clip_algorithm: "norm" (2-norm over all parameters of a net) or "value" (each entry).
        seeds: a count, a list, or ranges as text ("0-6"). A seed determines a member's initial weights and its batches.
        loss: "cross_entropy", or "squared_error" for 1/2 ||f(x) - e_y||^2; both are means over samples.
        weight_decay: lambda of the penalty lambda/2 ||w - centre||^2.
        decays: the parameters w of the penalty: "all", "weights" (no biases and norms) or "none".
        decay_towards: centre of the penalty of a single ``net``: "zero" or "identity". Arms have their own.
        penalty_scale: "one", or "batch" for lambda / batch size, as in Yu & Tomasi's tables.
        share_batches: members with the same seed see identical batches in all arms (twins always do).
        backend: "loop" computes one net after the other. "graph" runs each whole step, of training and of evaluation, as one
            CUDA graph with all nets side by side. "auto" uses the graph if possible, else the loop; the run says which, and
            why.
        float32: how a GPU multiplies float32 numbers in convolutions: "tf32", PyTorch's default, rounds the factors to 10 bits;
            "fp32" does not. Use it for comparisons with a CPU, which never rounds.
        compile: run every net through torch.compile; members of one architecture share one compiled graph.
        channels_last: keep weights and images in channels_last memory format, which is faster on a CPU. None: only for images
            on a CPU, and if every net supports it. Set False or True so that a net's bits do not depend on the other nets of
            the run.
        ema_decay: keep an exponential moving average of each net's weights and buffers, with this decay per step, and evaluate
            it, too (``test/error_ema``); None: no average. Training is the same with and without it.
        finite_every: steps between checks for NaN and infinity. None: 1 on a CPU. On a GPU, where a check waits for the device,
            50 in the loop, and the end of an epoch in graphs; the batch at fault may be gone then.
    """

    def __init__(
        self,
        optimizer: OptimizerCallable,
        net: NetFactory | None = None,
        arms: dict[str, Arm] | None = None,
        scheduler: LRSchedulerCallable | list[LRSchedulerCallable] | None = None,
        scheduler_milestones: list[int] | None = None,
        scheduler_interval: optimizing.Interval = "epoch",
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: optimizing.Clipping = "norm",
        seeds: int | list[int] | str = 1,
        loss: LossName = "cross_entropy",
        weight_decay: float = 1e-4,
        decays: Decays = "all",
        decay_towards: Centre = "zero",
        penalty_scale: Literal["one", "batch"] = "one",
        share_batches: bool = True,
        backend: BackendName = "auto",
        float32: Float32 = "tf32",
        compile: bool = False,
        channels_last: bool | None = None,
        ema_decay: float | None = None,
        finite_every: int | None = None,
    ) -> None:
        super().__init__()
        _check_options(net, arms, weight_decay, decay_towards, gradient_clip_val, ema_decay, finite_every)
        # A backward pass for each member, then the penalties' gradients, then one step.
        self.automatic_optimization = False
        self._evaluated_at = -1  # optimizer steps when nets were evaluated last
        self._masks: set[tuple[str, str]] = set()  # members and keys of buffers that are infinite from the beginning
        self.members = build_members(arms or {"net": Arm(net, decay_towards=decay_towards)}, parse_seeds(seeds))
        self.own = self.members  # those that this rank trains and evaluates
        self.owners = {member.name: 0 for member in self.members}  # which rank knows a member during an epoch
        self.nets = nn.ModuleDict({name: net for name, net in self.members})
        self.loss = loss_named(loss)
        self._losses: dict[str, Loss] = {}  # by member (`_loss_of`)
        self._many_outputs: set[str] = set()  # members whose nets may return more than one tensor
        self._adapted: set[str] = set()  # those of them whose nets return one now (`adapt`)
        self.weight_decay = weight_decay
        self.decays = decays
        self.penalty_scale = penalty_scale
        self.share_batches = share_batches
        self.backend: BackendName = backend
        self.float32: Float32 = float32
        self.compile_nets = compile
        self.channels_last = channels_last  # as configured; what was decided is in the plan
        self.finite_every = finite_every
        self.plan = BatchPlan()
        self.penalties: ByMember[Penalty] = ByMember()
        self.ema_decay = ema_decay
        self.averages: ByMember[AveragedModel] = ByMember()  # none without ema_decay
        self.averaging: optimizing.Averages | None = None  # which changes those of this rank in a step
        self.running = self._metrics(1)[0]
        self.last_metrics: dict[str, dict[str, float]] = {}  # of the last evaluation
        self.evaluated, self.evaluated_averages = self._metrics(0), self._metrics(0)
        self._make_optimizer = optimizer
        self._in_order = True  # whether it has the weights in the nets' order, in which its state numbers them
        self._make_scheduler = scheduler
        self.scheduler_milestones = scheduler_milestones
        self.scheduler_interval: optimizing.Interval = scheduler_interval
        self.gradient_clip_val = gradient_clip_val
        self.gradient_clip_algorithm: optimizing.Clipping = gradient_clip_algorithm
        self._graphs: StepsInGraphs | None = None
        self._of_own_dtype: dict[nn.Parameter, dict[str, Tensor]] = {}  # until a resume gives it back

    @override
    def teardown(self, stage: str) -> None:
        """Graphs hold memory, and can neither be copied nor saved. Where nothing was left to train, nothing was given back."""
        self._graphs, self._of_own_dtype = None, {}

    @override
    def configure_model(self) -> None:
        """Twins are exact only in the precision they train in: with 64-true, transfer again after widening."""
        if torch.get_default_dtype() == torch.float64 and any(w.dtype == torch.float32 for w in self.parameters()):
            self.double()
            for member in self.members:
                if member.twin_of is not None:
                    member.net.load_state_dict(twin(self.nets[member.twin_of]).state_dict())
        if self.ema_decay is not None and not len(self.averages):
            for name, net in self.members:
                self.averages[name] = AveragedModel(net, use_buffers=True).requires_grad_(False)

    @override
    def setup(self, stage: str) -> None:
        if self._shares_members:
            self._share_out()
        self._check_precision()
        device = self.trainer.strategy.root_device
        if device.type == "cuda":
            use_float32(self.float32)
        self._graphs = self._graphs_on(device)
        if stage == "fit":
            if fixed := next((name for name, net in self.members if not trained_weights(net)), None):
                raise UserError(
                    f"member '{fixed}' has no weights to train: it has no parameters, or all have requires_grad=False. To look "
                    "at it as it is, use `measure`."
                )
            self.finite_checks = FiniteChecks(
                self.finite_every or (1 if device.type == "cpu" else FINITE_EVERY), self.own
            )
        if self.compile_nets:
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILED_VARIANTS)
        self.plan = self._planned(stage)
        scale = 1 / self.plan.batch_size if self.penalty_scale == "batch" else 1
        for member in self.members:
            if self.compile_nets and member.net._compiled_call_impl is None:  # a second stage would trace it anew
                member.net.compile(dynamic=False)
            self.penalties[member.name] = Penalty(member.net, self.weight_decay * scale, self.decays, member.centre)
        # Processes send each other buffers before each pass: not those that are constants, and as large as the weights.
        centres = [f"penalties.{name}" for name, _ in self.penalties.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self, centres)
        self.evaluated = self._metrics(len(self.plan.eval_splits))
        self.evaluated_averages = self._metrics(len(self.plan.eval_splits) if self.ema_decay is not None else 0)

    def _check_precision(self) -> None:
        if getattr(self.trainer.precision_plugin, "scaler", None) is not None:
            raise UserError(
                f"trainer.precision {self.trainer.precision} scales the loss, and the penalty's gradient would not be "
                "scaled with it: use bf16-mixed, which needs no scaling."
            )
        if self.ema_decay is not None and self.trainer.precision in ("bf16-true", "16-true"):
            raise UserError(
                f"trainer.precision {self.trainer.precision} rounds away what a step adds to the averages of model.ema_decay: "
                "use bf16-mixed, or leave ema_decay out."
            )

    def _share_out(self) -> None:
        """Say which rank trains which members."""
        if getattr(self.trainer.strategy, "_layer_sync", None) is not None:
            raise UserError(
                "trainer.sync_batchnorm would mix nets that are trained by different processes: leave it out."
            )
        shared = shares(self.members, self.trainer.world_size)
        self.own = tuple(shared[self.global_rank])
        self.owners = {member.name: rank for rank, share in enumerate(shared) for member in share}

    def _graphs_on(self, device: torch.device) -> "StepsInGraphs | None":
        """Steps in CUDA graphs, where the back end, the device and the losses allow them."""
        returning = {name for name, _ in self.members if isinstance(self._loss_of(name), ReturnedLoss)}
        if returning and self.backend == "graph":
            raise UserError(
                f"model.backend graph cannot train '{min(returning)}', which computes its own loss: set it to auto or loop."
            )
        if not possible(self.backend, device, self.trainer.world_size):
            return None
        if returning:
            log.warning("back end: loop ('%s' computes its loss itself)", min(returning))
            return None
        from lightning_app.modules.in_graphs import StepsInGraphs

        return StepsInGraphs(self, strict=self.backend == "graph")

    def _metrics(self, count: int) -> Sequence[ByMember[RiskAndError]]:
        """So many times one of each member."""
        made = nn.ModuleList(ByMember({name: RiskAndError() for name, _ in self.members}) for _ in range(count))
        return cast(Sequence[ByMember[RiskAndError]], made)

    def _planned(self, stage: str) -> BatchPlan:
        """What the datamodule offers and the nets need, after a dry run, and agreed with the datamodule."""
        plan = BatchPlan.for_data(self._datamodule)
        self._many_outputs = check_outputs(self.members, plan.sample_shape, plan.num_classes, plan.sample_dtype)
        self._many_outputs |= {name for name, _ in self.members if self._loss_of(name) is not self.loss}
        wanted = plan.channels_last if self.channels_last is None else self.channels_last
        plan = replace(
            plan,
            seeds=self.data_seeds,
            channels_last=choose_memory_format(
                self.members, plan.sample_shape, wanted, self.trainer.strategy.root_device
            ),
            eval_splits=("test",) if stage == "test" else plan.eval_splits,
        )
        if agree := getattr(self._datamodule, "use_plan", None):
            agree(plan)
        return plan

    @override
    def configure_optimizers(self) -> Any:
        """``{"optimizer": ...}``, with ``"lr_scheduler"`` if there is one.

        Raises:
            UserError: if they cannot be made, if the optimizer decays weights itself, or if it would mix the nets of a bank.
        """
        try:
            optimizer = self._make_optimizer(self.nets.parameters())
            optimizing.check_rate(optimizer)
            scheduler = optimizing.make_schedule(self._make_scheduler, self.scheduler_milestones, optimizer)
        except UserError:
            raise
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise UserError(f"model.optimizer or model.scheduler cannot be made as configured: {error}.") from error
        optimizing.refuse_unfit(optimizer, scheduler, len(self.members))
        optimizing.refuse_mixing(self._make_optimizer, optimizer, len(self.members))
        optimizing.try_schedules(self._make_scheduler, optimizer)
        # Asked here: what changes layers in training, as pruning does, may leave their weights in another order.
        self._in_order = [*map(id, optimizing.weights_of(optimizer))] == [*map(id, self.nets.parameters())]
        if scheduler is None:
            return {"optimizer": optimizer}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.scheduler_interval}}

    @property
    def data_seeds(self) -> tuple[int, ...]:
        """Seeds of the data streams that a training batch must hold."""
        return tuple(dict.fromkeys(self.stream_of(member) for member in self.own))

    def stream_of(self, member: Member) -> int:
        """The member's data stream: its seed, mixed with the arm's name when arms do not share batches."""
        if self.share_batches:
            return member.seed
        original = next((other for other in self.members if other.name == member.twin_of), member)
        return member.seed + (zlib.crc32(original.arm.encode()) << 64)

    @property
    def _shares_members(self) -> bool:
        """Are the members shared out among ranks?"""
        return isinstance(self.trainer.strategy, SeedSharding)

    @property
    def _shares_batches(self) -> bool:
        """Is every batch shared out among ranks, whose gradients are then averaged in the backward pass?"""
        return self.trainer.world_size > 1 and not self._shares_members

    @property
    def _datamodule(self) -> Any:
        """The trainer's datamodule, which may be of another project; None where loaders were given instead."""
        return getattr(self._trainer, "datamodule", None)

    @override
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, dict[str, Tensor]]:
        """One step of every member. Returns the members' risks on their batches, () each, for callbacks."""
        if batch_idx == 0:
            for metric in self.running.values():
                metric.reset()
        if (graphs := self._graphs) is not None and graphs.takes(batch, batch_idx):
            risks = graphs.train(batch)
        else:
            risks = self.loop_step(batch)
        if self.scheduler_interval == "step":
            self._step_schedule()
        return {"risks": dict(zip((member.name for member in self.own), risks))}

    def loop_step(self, batch: Any) -> Sequence[Tensor]:
        """The step kernel by kernel, net after net; risks of the members."""
        optimizer = cast(LightningOptimizer, self.optimizers())  # there is one
        batches = self._by_stream(batch)
        passes = self._weighted(
            Pass(m.net, *self._taken(m.name, batches[self.stream_of(m)]), self._draw_seed(m), self._loss_of(m.name))
            for m in self.own
        )
        number, when = self.global_step + 1, self._in_words(self.global_step + 1)
        answers: list[Answer] = []  # of the optimizer's first call, at the weights before the step

        def gradients() -> Tensor | None:
            for member in self.own:
                member.net.zero_grad()  # of all weights: clipping counts those, too, that the optimizer was not given
            with explained(f"learn the batch of {when}", lambda: dict(zip((m.name for m in self.own), passes))):
                found = one_by_one(passes, self.manual_backward, at_once=self._shares_batches)
            optimizing.clip(self.own, self.gradient_clip_val, self.gradient_clip_algorithm)
            add_gradients(self.penalties[member.name] for member in self.own)
            if not answers:
                answers.extend(found)
                self.finite_checks.before_update(optimizer.optimizer, passes, found, number, when)
            if not optimizing.wants_cost(optimizer.optimizer):
                return None
            costs = [
                each.weight * risk + self.penalties[m.name].value()
                for m, each, (risk, _) in zip(self.own, passes, found)
            ]
            cost = torch.stack(costs).sum()  # ranks that share a batch go one way only if they see the same cost
            return self.trainer.strategy.reduce(cost, reduce_op="mean") if self._shares_batches else cost

        optimizing.step(optimizer, gradients, len(self.members))
        self.finite_checks.after_update(optimizer.optimizer, number, when)
        if self.averaging is not None:
            self.averaging.update()
        for member, each, (risk, logits) in zip(self.own, passes, answers):
            self.running[member.name].update(risk, logits, each.labels, each.loss)
        return [risk for risk, _ in answers]

    @override
    def on_train_start(self) -> None:
        buffers = {(name, key) for name, net in self.members for key, _ in net.named_buffers(remove_duplicate=False)}
        self._masks = not_finite(self.members) & buffers  # those of attention are -inf
        for weight, kept in self._of_own_dtype.items():
            self.trainer.optimizers[0].state[weight] |= {name: each.to(weight.device) for name, each in kept.items()}
        self._of_own_dtype = {}
        optimizing.lay_out(self.trainer.optimizers[0])
        if self.ema_decay is not None:
            pairs = [(self.averages[member.name], member.net) for member in self.own]
            begun = bool(pairs[0][0].n_averaged)  # the same for all, and asked once: a device has to be waited for
            self.averaging = optimizing.Averages(pairs, self.ema_decay, begun)
        if self._graphs is not None:
            self._graphs.start_training()

    @override
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        if dataloader_idx >= len(self.evaluated):
            raise UserError(
                f"expected a name for each evaluation loader, got {dataloader_idx + 1} loaders or more and the names "
                f"{', '.join(self.plan.eval_splits)}: give one loader, or for validation a datamodule whose attribute "
                "eval_splits names them all, such as ('val', 'test')."
            )
        both = [(self.nets, self.evaluated), *([(self.averages, self.evaluated_averages)] if self.averages else [])]
        asked = [(name, nets[name], metrics[dataloader_idx][name]) for nets, metrics in both for name, _ in self.own]
        is_pair = (
            isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)
        )
        if self._graphs is None or not is_pair:  # a graph reads images and labels
            self._evaluate(asked, batch)
            return
        (_, nets, metrics), (images, labels) = zip(*asked), batch
        evaluate = partial(self._evaluate, asked)
        self._graphs.evaluate(dataloader_idx, (self._format(images), labels), nets, metrics, evaluate)

    def _evaluate(
        self,
        asked: Sequence[tuple[str, nn.Module, RiskAndError]],
        batch: Any,
        streams: Sequence[Any] = (),
    ) -> None:
        """Add a batch to the metric of each net, or of its averages, by the member's name."""

        def add(name: str, net: nn.Module, metric: RiskAndError) -> None:
            (inputs, labels), loss = self._taken(name, batch), self._loss_of(name)
            if not len(labels):  # a rank's share of a small batch, which not every net takes
                metric.update(*_NO_SAMPLES)
                return
            logits = net(inputs)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            metric.update(loss(logits if isinstance(loss, ReturnedLoss) else wide, labels), logits, labels, loss)

        def passes() -> dict[str, Pass]:
            own = asked[: len(self.own)]  # not their averages
            return {name: Pass(net, *self._taken(name, batch), 0, self._loss_of(name)) for name, net, _ in own}

        with explained("be evaluated on a batch", passes):
            side_by_side([partial(add, *each) for each in asked], streams)

    @override
    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.validation_step(batch, batch_idx, dataloader_idx)

    @override
    def on_train_epoch_end(self) -> None:
        """Stop what diverged; step the schedule, but not where training ends in the middle of an epoch."""
        self.finite_checks.at_losses(self._in_words(self.global_step))
        if self.scheduler_interval == "epoch" and self.trainer.is_last_batch:
            self._step_schedule()

    def _step_schedule(self) -> None:
        if (scheduler := self.lr_schedulers()) is not None:
            optimizing.step_schedule(scheduler)

    def _reset_evaluation(self) -> None:
        for metrics in (*self.evaluated, *self.evaluated_averages):
            for metric in metrics.values():
                metric.reset()
        if self._graphs is not None:
            self._graphs.check_evaluations()

    # An epoch that is not evaluated must not repeat the last evaluation's numbers: so when one starts, too.
    on_train_epoch_start = on_validation_epoch_start = on_test_epoch_start = _reset_evaluation

    def _log_evaluation(self) -> None:
        """For the progress bar, of several seeds their mean; the run's log is written by the `TrainingMetrics` callback."""
        show = partial(self.log, logger=False, add_dataloader_idx=False)
        seeds = len({member.seed for member in self.members})
        errors: dict[str, float] = defaultdict(float)
        trainer = self.trainer
        tried_out = trainer.sanity_checking and trainer.num_sanity_val_batches != trainer.num_val_batches
        self._evaluated_at = -1 if tried_out else self.global_step  # a few batches before training are no evaluation
        self.last_metrics = self.metrics()
        for member, (name, numbers) in zip(self.members, self.last_metrics.items()):
            for key, value in numbers.items():
                if key.endswith(("/risk", "/error")):
                    label = f"{key}/{name}" if len(self.members) > 1 else key
                    show(label, value, prog_bar=key == "test/error" and seeds == 1)
                    if key.endswith("/risk") and not math.isfinite(value):  # Python says the same words once
                        rank_zero_warn(
                            f"{key} of member '{name}' is NaN or infinite: the net has diverged, or the samples that it is "
                            "evaluated on have NaN or infinite values."
                        )
            errors[member.arm] += numbers.get("test/error", math.nan) / seeds
        for arm, error in errors.items() if seeds > 1 else ():
            show(f"test/error/{arm}", error, prog_bar=True)

    on_validation_epoch_end = on_test_epoch_end = _log_evaluation

    @torch.inference_mode(False)  # of several processes torchmetrics leaves copies, to which training adds
    @torch.no_grad()
    def metrics(self) -> dict[str, dict[str, float]]:
        """Every member's present numbers. Call it on all ranks: it sums over them.

        ``train/risk_running``, ``train/error_running``: means over the epoch's augmented batches, each at the weights of its
        step. ``<split>/risk``, ``<split>/error``: on samples without augmentation, at the present weights; with ``_ema``, at
        their moving averages. They are left out if a step was made since the last evaluation.
        ``train/penalty``, ``train/cost``: lambda/2 ||w - centre||^2 (times the scale) and L + penalty at the present
        weights. ``train/cost_paper``: L + lambda/2 ||w - centre||^2 / B with batch size B, as in the paper's tables.
        """
        found = {}
        evaluated = self.plan.eval_splits if self._evaluated_at == self.global_step else ()
        self._agree_on_updates()
        for name, _ in self.members:
            numbers: dict[str, float] = {}
            if self.running[name].update_called:
                numbers |= {f"train/{key}_running": value for key, value in self.running[name].compute().items()}
            for every, suffix in ((self.evaluated, ""), (self.evaluated_averages, "_ema")):
                for split, metrics in zip(evaluated, every):
                    if metrics[name].update_called:
                        numbers |= {f"{split}/{key}{suffix}": value for key, value in metrics[name].compute().items()}
            found[name] = numbers | self._costs(name, numbers)
        return found

    def _agree_on_updates(self) -> None:
        """What one rank's members have been through, all have: else only some ranks would sum, and wait for ever."""
        for metrics in (self.running, *self.evaluated, *self.evaluated_averages):
            if any(metrics[name].update_called for name, _ in self.own):
                for metric in metrics.values():
                    metric.update(*_NO_SAMPLES)

    def _costs(self, name: str, numbers: Mapping[str, float]) -> dict[str, float]:
        if name not in self.penalties:
            return {}
        half_norm = self.penalties[name].half_norm()
        costs = {"train/penalty": self.penalties[name].strength * half_norm}
        if "train/risk" in numbers:
            costs["train/cost"] = numbers["train/risk"] + costs["train/penalty"]
            costs["train/cost_paper"] = numbers["train/risk"] + self.weight_decay * half_norm / self.plan.batch_size
        return costs

    def _in_words(self, number: int) -> str:
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        return f"epoch {self.current_epoch + 1} (step {number}) at learning rate {rate:g}"

    def _check_weights(self) -> None:
        """A checkpoint that can only go on wrongly must not replace one that can go on."""
        if broken := not_finite(self.members) - self._masks:
            name, key = min(broken)
            raise DivergedError(
                f"{key} of member '{name}' has NaN or infinite values after step {self.global_step}. The checkpoint before it "
                "and everything logged so far are kept; try a smaller learning rate."
            )

    def _by_stream(self, batch: Any) -> dict[int, Any]:
        """The batch of each data stream; a loader that is not ours has one for all of them."""
        if hasattr(batch, "mapping"):  # of our loader without our datamodule
            batch = batch.mapping(self.trainer.precision_plugin.convert_input)
        if isinstance(batch, Mapping) and all(stream in batch for stream in self.data_seeds):
            return {stream: batch[stream] for stream in self.data_seeds}
        return dict.fromkeys(self.data_seeds, batch)

    def _loss_of(self, name: str) -> Loss:
        """As measures have it: a net of transformers computes its own."""
        if name not in self._losses:
            self._losses[name] = loss_of_net(self.nets[name], self.loss)
        return self._losses[name]

    def _taken(self, name: str, batch: Any) -> tuple[Any, Tensor]:
        """Inputs as a member's net takes them, and labels (`pair_of`)."""
        net, loss = self.nets[name], self._loss_of(name)
        inputs, labels = pair_of(batch, net, with_labels=isinstance(loss, ReturnedLoss), advice=TRAINED)
        if name not in self._adapted and (name in self._many_outputs or not isinstance(inputs, Tensor)):
            self._adapted.add(name)
            for each in (net, self.averages[name]) if name in self.averages else (net,):
                adapt(each)
            if isinstance(loss, (LossOfMaps, ReturnedLoss)):
                with evaluating(net):
                    loss.look(net, inputs)
        return (self._format(inputs) if isinstance(inputs, Tensor) else inputs), labels

    def as_trained(self, images: Tensor) -> Tensor:
        """Gathered images as Lightning would have given them to us."""
        return self._format(self.trainer.precision_plugin.convert_input(images))

    def _format(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last) if self.plan.channels_last else images

    def _weighted(self, passes: Iterable[Pass]) -> list[Pass]:
        """On several ranks with the weights that make the mean of the ranks' gradients the mean over the global batch.

        Where no label of a global batch counts they are NaN, as its risk is.
        """
        passes = [*passes]
        if not self._shares_batches:
            return passes
        own = torch.stack([counts_of(each.labels, each.loss) for each in passes]).double()
        total = self.trainer.strategy.reduce(own.clone(), reduce_op="sum")  # in place
        weights = own * self.trainer.world_size / total
        return [replace(each, weight=weight) for each, weight in zip(passes, weights.tolist())]

    def _draw_seed(self, member: Member) -> int:
        """A net's own draws (dropout) are a function of its seed, the step and the rank: nothing to save for a resume."""
        rank = 0 if self._shares_members else self.global_rank
        return hash((member.seed, self.global_step, rank)) % 2**63

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if isinstance(wrapper := self.trainer.strategy.model, DistributedDataParallel):
            # The next pass, of training or evaluation, begins with rank zero's buffers (statistics of BatchNorm), as after a
            # resume. DistributedDataParallel does so only where its own forward prepares a backward pass, which is by hand here.
            wrapper.require_forward_param_sync = True
        if self.trainer.is_last_batch:  # before evaluation and measures, which look at all members
            self.gather_members()

    def gather_members(self) -> None:
        """Give all ranks the members that each has trained. For callbacks that look at members; call it between two batches."""
        if isinstance(self.trainer.strategy, SeedSharding):
            exchange(self.owners, self.members, self.averages, self.trainer.optimizers[0], self.trainer.strategy)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._shares_members and self.trainer.optimizers:  # between two batches the ranks have gone their own ways
            self.gather_members()
            checkpoint["state_dict"] = self.state_dict()
            checkpoint["optimizer_states"] = [optimizer.state_dict() for optimizer in self.trainer.optimizers]
        if self.trainer.state.fn == "fit":
            self._check_weights()
        checkpoint["members"] = [resume.describe(member) for member in self.members]
        checkpoint["id_weights"] = {m.name: resume.id_weights(m, averaged=bool(self.averages)) for m in self.members}
        checkpoint["centres"] = {member.name: member.centre for member in self.members}
        checkpoint["share_batches"] = self.share_batches
        checkpoint["parameters"] = {member.name: len(list(member.net.parameters())) for member in self.members}
        checkpoint["scheduler_interval"] = self.scheduler_interval
        checkpoint["running"] = {name: self._over_ranks(self.running[name].sums()) for name in self.running}
        checkpoint["optimizer"] = type(self.trainer.optimizers[0]).__name__ if self.trainer.optimizers else None
        checkpoint["in_order"] = self._in_order
        # Not in the datamodule's state_dict: Lightning restores that only into the class that saved it.
        if describe_data := getattr(self._datamodule, "trained_on", None):
            checkpoint["trained_on"] = describe_data()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        resume.check_members(checkpoint.get("members", []), [resume.describe(member) for member in self.members])
        resume.check_tensors(checkpoint["state_dict"], self.state_dict())
        if self.trainer.state.fn == "fit":
            if "optimizer_states" not in checkpoint:
                raise UserError(
                    "training cannot be resumed from this file: it holds the final weights of a finished run, without the "
                    "optimizer's state. Validate, test or measure it, or name a checkpoint (last.ckpt)."
                )
            # Only where training goes on: to evaluate and measure on other data is a question like any other.
            check = getattr(self._datamodule, "check_trained_on", None)
            if check and "trained_on" in checkpoint:  # older checkpoints do not say
                check(checkpoint["trained_on"])
            made = self.configure_optimizers()
            resume.keep_configured_schedule(checkpoint, made)
            own = self.state_dict(keep_vars=True).items()  # its names are those of the checkpoint
            dtypes = {w: checkpoint["state_dict"][name].dtype for name, w in own if isinstance(w, nn.Parameter)}
            (saved,) = checkpoint["optimizer_states"]
            self._of_own_dtype = optimizing.of_own_dtype(saved["state"], made["optimizer"], dtypes)
            # Older checkpoints list the position in the data once for each data stream, and all are the same.
            del checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader", [])[1:]
            for name, sums in checkpoint["running"].items():  # they are the sums over all ranks
                self.running[name].restore(sums, ours=self.global_rank == 0)

    def _over_ranks(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.trainer.world_size == 1:
            return sums
        strategy = self.trainer.strategy
        return {name: strategy.reduce(value.to(self.device), reduce_op="sum").cpu() for name, value in sums.items()}


def _check_options(
    net: NetFactory | None,
    arms: Mapping[str, Arm] | None,
    weight_decay: float,
    decay_towards: Centre,
    gradient_clip_val: float | None,
    ema_decay: float | None,
    finite_every: int | None,
) -> None:
    if (net is None) == (not arms):
        got = (
            "neither: give one, or --config with a configuration that has one, such as the config.yaml of a run"
            if net is None
            else "both: leave one out"
        )
        raise UserError(
            f"the model needs either `model.net` (one network) or `model.arms` (several by name), got {got}."
        )
    if weight_decay < 0:
        raise UserError(f"model.weight_decay: expected a number of at least 0, got {weight_decay}.")
    if arms and decay_towards != "zero":
        raise UserError(
            f"model.decay_towards is the centre of a single model.net, got {decay_towards} beside model.arms: leave it out, and "
            f"set that of each arm, such as model.arms.{next(iter(arms))}.decay_towards."
        )
    if gradient_clip_val is not None and not gradient_clip_val > 0:
        raise UserError(
            f"model.gradient_clip_val: expected a number above 0, or null for no clipping, got {gradient_clip_val}."
        )
    if ema_decay is not None and not 0 <= ema_decay < 1:
        raise UserError(
            f"model.ema_decay: expected a number in [0, 1), such as 0.999, or null for no average, got {ema_decay}."
        )
    if finite_every is not None and finite_every < 1:
        raise UserError(f"model.finite_every: expected a number of steps of at least 1, or null, got {finite_every}.")
