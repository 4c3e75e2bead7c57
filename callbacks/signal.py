"""How signals pass through the layers, from training's own steps: `lightning_app.measures.signal`."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import Measure
from callbacks.protocol import trained_here, why_unseen
from lightning_app.common.calls import adapted
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import compiled_parts, tensors_in, trained_weights
from lightning_app.measures.core.losses import counted, scalar_loss
from lightning_app.measures.signal import SignalWatch, Sums, expected, gathered, profile
from lightning_app.runs.members import members_of

__all__ = ["Signal"]

UNSEEN = (
    "Signal has only weights, their gradients and updates of '{}', and no activations, because it saw no training "
    "pass of this module. Either another net is trained; or training_step calls parts of the module instead of the "
    "module itself (call self(x), or name the trained nets in an attribute members); or it is in evaluation mode "
    "though it began in training mode; or it is compiled (torch.compile), and compiled modules run no hooks."
)
COMPILED_PARTS = (
    "Signal has only weights, their gradients and updates, and no activations, of layers in the compiled parts of "
    "'{}' ({}): compiled modules run no hooks."
)
Seen = tuple[Sums, tuple[int, ...]]  # of one net: sums, and the shape of a sample


class Signal(Measure):
    """Logs by layer the size of activations and gradients, how far weights move, and which units are dead.

    Definition:
        Root mean squares over samples, units and positions, taken from the training step itself: of a layer's output, of the
        gradient of each sample's loss with respect to it, and of weights and their gradients. At an addition, the branch is the
        summand that has passed more layers; the other is the stream. Nets have hooks only during the steps that are logged. A
        number logged after step s belongs to the weights before that step; epoch 0 is the first step, with the initial weights.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``signal/layer07/activation`` | 1 | RMS of the layer's output, before normalisation and ReLU |
        | ``signal/layer07/gradient`` | nats | RMS of the gradient of each sample's loss with respect to it |
        | ``signal/layer07/gradient_correlation`` | 1 | RMS cosine of these gradients in two samples |
        | ``signal/layer07/weight`` | 1 | RMS of the weights before the step |
        | ``signal/layer07/weight_gradient`` | nats | RMS of the weights' gradient as the optimizer got it, penalty included |
        | ``signal/layer07/update`` | 1 | ‖change of the weights in the step‖ / ‖weights‖ |
        | ``signal/layer07/dead`` | share | of the units behind the layer that its ReLUs let through for no sample and position |
        | ``signal/layer07/branch_ratio`` | 1 | ‖branch‖ / ‖stream‖ where a branch that ends with this layer is added |
        | ``signal/layer07/branch_cosine`` | 1 | cosine of branch and stream there, all samples as one vector |
        | ``signal/layer07/activation_expected`` | 1 | before training: closed form, from the first layer's activation on |
        | ``signal/layer07/gradient_expected`` | nats | before training: closed form, from the last convolution's gradient back |
        | ``cost/signal`` | s | what logging took; what watching took is a part of the step |

    Interpretation:
        Glorot & Bengio ask for curves that are flat over the layers. A straight line on the logarithmic axis is exponential in
        the depth: the gain is too small or too large. The closed form is an expectation over the random weights; a single net
        deviates from it by a random walk, in each layer of n independent units by about √(5 / n) of the mean square. ``update``
        is often between 1e-4 and 1e-2; a layer with orders of magnitude less hardly trains. ``gradient_correlation`` is 1 if
        all samples have the same gradient up to a factor, and about 1/√n for noise in n dimensions. At initialisation Balduzzi
        et al. expect it to halve in each layer of a plain net of ReLUs, from the last one backwards, and to fall by a quarter
        in each block of a residual one, for samples that have a quarter of the units active in common.

    Cost:
        For steps that are logged, a pass over activations and gradients and one transfer from the device; nothing for others.

    Breaks:
        * Compiled nets (``model.compile``, ``torch.compile``) run no hooks: they have only weights, their gradients and
          updates, and a warning says so. Logged steps do not run in a CUDA graph, whatever ``model.backend`` says.
        * If a module's ``training_step`` calls its parts instead of the module itself, there are no activations and gradients:
          let it call ``self(x)``, or name the trained nets in ``members``.
        * ``gradient`` is B times the gradient of the mean loss over a batch of B. A loss that is not a mean over samples, or
          gradients accumulated over several batches, change its scale; the factor of a GradScaler (16-mixed) is divided out.
          Passes of a step that the scaler skipped count. Of an optimizer that calls a closure several times (LBFGS) a trainer
          announces the first pass, which counts alone; in ``skipscope.watch`` all count. Derivatives within the loss
          (``create_graph``, as in a physics-informed net) are not counted.
        * ``gradient_correlation`` uses neighbours in the batch (random pairs if training shuffles): B pairs, so its relative
          error is about 1/√(2 B). Balduzzi et al. use one output's gradient for all inputs; the loss's gradient depends on the
          label, which at initialisation is a factor of the same size for all layers. Samples without a gradient are left out.
          If memory allows only a part of the samples at a time, neighbours are within a part.
        * Layers within a reentrant activation checkpoint (``use_reentrant=True``) have no gradients of their outputs.
        * The last step is not logged if nothing announces it beforehand, as with `EarlyStopping`.
        * ``dead`` covers ReLUs, not GELU and the like, and behind a layer only ReLUs with as many units as the first. A net
          without additions has no branches.
        * Without training (`measure`) it uses the probe samples, in evaluation mode, and there are no updates. Running statistics
          that have seen no data are then those of probe samples.
        * The closed forms are for nets with one convolution a block and without normalisation. With skips there is only a
          forward one. It is an upper bound: close if branches are small, and with KWI 0.2 to 0.3 a block too steep in its log.

    Source:
        Glorot & Bengio (2010), section 4.2; He et al. (2015), section 2.2; Schoenholz et al. (2017) for the recursions;
        Balduzzi et al. (2017), "The shattered gradients problem", for the correlation.

    When it is logged: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.
    """

    family = "signal"
    gradients = True
    takes_samples = False  # but for nets that nobody trains

    def __init__(self, **clock: Any) -> None:
        super().__init__(**clock)
        self._began = 0  # optimizer steps when they began
        self._of_batch = 1  # optimizer steps that a batch makes at most, as far as is known
        self._seen: dict[str, Seen | Exception] | None = None  # by net, of the present step; None: nothing is trained

    @override
    def forget_run(self) -> None:
        super().forget_run()
        self._watches: dict[str, SignalWatch | Exception] = {}  # during a step that will be logged
        self._handles: list[RemovableHandle] = []  # of its optimizers

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        seen = _of_probe(context) if self._seen is None else self._seen.get(context.name, ({}, ()))
        if isinstance(seen, Exception):
            raise seen
        sums, shape = seen
        numbers = profile(sums)
        if not context.epoch:
            numbers |= expected(context.net, numbers, shape)
        return {f"signal/{key}": value for key, value in numbers.items()}

    @override
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: float) -> None:
        if self._seen is None or self._seen:  # a step that nobody knew to be the last one was not watched
            super().observe(trainer, pl_module, epoch)

    # -- during a step ------------------------------------------------------------------------------------------------

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen = {}
        self._of_batch = max(1, len(getattr(trainer, "optimizers", ())))  # of a trainer: `watch` has one
        super().on_train_start(trainer, pl_module)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._seen = {}
        if self._watches or not self._will_be_logged(trainer):  # gradients may be accumulated over batches
            return
        self._began = trainer.global_step
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        unseen = why_unseen(member.net for member in members_of(pl_module))
        if unseen:
            self.warn_once(f"Signal sees weights, their gradients and updates only: {unseen}.")
        for name, net, *_ in trained_here(pl_module):
            if parts := compiled_parts(net):
                self.warn_once(COMPILED_PARTS.format(name, ", ".join(parts)))
            try:
                self._watches[name] = SignalWatch(net, not unseen, scale=scaler and scaler.get_scale)
            except Exception as error:  # of a foreign net: said when it is to be logged
                self._watches[name] = error
        # `watch` announces its steps itself.
        optimizers: Sequence[torch.optim.Optimizer] = getattr(trainer, "optimizers", ()) if self._watches else ()
        for each in optimizers:
            with suppress(AttributeError):  # of one that is not made as torch's are
                self._handles.append(each.register_step_pre_hook(self._step_begins))

    def _step_begins(self, optimizer: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        """Gradients are complete and clipped when an optimizer gets them, which is behind the passes of its closure, if any."""
        stepping = {id(weight) for group in optimizer.param_groups for weight in group["params"]}

        def keep() -> None:
            for watch in self._watches.values():
                if isinstance(watch, SignalWatch):
                    watch.keep_gradients(stepping, getattr(optimizer, "grad_scale", None))

        def and_keep(value: Any) -> Any:
            def closure(*given: Any, **named: Any) -> Any:
                found = value(*given, **named)
                keep()
                return found

            return closure if callable(value) else value

        if not any(map(callable, (*args, *kwargs.values()))):
            keep()
            return None
        return tuple(map(and_keep, args)), {name: and_keep(value) for name, value in kwargs.items()}

    @property
    def watching(self) -> bool:
        """Whether this step's passes are looked at: then they must run, and not be a replay."""
        return bool(self._watches)

    def _will_be_logged(self, trainer: pl.Trainer) -> bool:
        before = trainer.global_step
        steps = before + self._of_batch
        ends = trainer.is_last_batch or 0 < trainer.max_steps <= steps
        first = self.at_start and not before
        return (
            first
            or self.due_after(steps, before)
            or (ends and self._epoch_is_due(trainer, steps, trainer.current_epoch + 1))
        )

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer | None
    ) -> None:
        """The passes are over; what other measures run at the end of the batch is not looked at."""
        groups = [] if optimizer is None else optimizer.param_groups  # `watch` has one for all nets
        stepping = {id(weight) for group in groups for weight in group["params"]}
        for name, net, *_ in trained_here(pl_module) if self._watches else ():
            # Several optimizers may take turns in a batch: the net of another one may still have its pass.
            weights = trained_weights(net).values()
            if not (groups and weights) or any(id(weight) in stepping for weight in weights):
                _close(self._watches[name], stepping if groups else None)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._of_batch = max(self._of_batch, trainer.global_step - self._before)
        if self._watches and trainer.global_step != self._began:
            self._seen = _over_ranks(self._stop(), trainer.world_size)
            if self.at_start and not self._began:
                self.observe(trainer, pl_module, 0)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def _stop(self) -> dict[str, Seen | Exception]:
        seen: dict[str, Seen | Exception] = {}
        for name, watch in self._watches.items():
            try:
                if isinstance(watch, Exception):
                    raise watch
                if watch.missed:
                    self.warn_once(UNSEEN.format(name))
                seen[name] = (watch.stop(), watch.shape)
            except Exception as error:  # of a foreign net: its numbers are missing, and training goes on
                seen[name] = error
        self._forget_step()
        return seen

    def _forget_step(self) -> None:
        self._watches = {}
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        for watch in self._watches.values():
            _close(watch)
        self._forget_step()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self._seen = None


def _close(watch: SignalWatch | Exception, stepping: Collection[int] | None = None) -> None:
    if isinstance(watch, SignalWatch):
        watch.close(stepping)


def _over_ranks(seen: dict[str, Seen | Exception], ranks: int) -> dict[str, Seen | Exception]:
    """What all ranks have seen of each net; an error of one is the net's."""
    if ranks == 1:
        return seen
    parts: list[dict[str, Seen | Exception]] = [{}] * ranks
    torch.distributed.all_gather_object(parts, seen)
    found: dict[str, Seen | Exception] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        of_net = [part[name] for part in parts if name in part]
        errors = [each for each in of_net if isinstance(each, Exception)]
        fine = [each for each in of_net if not isinstance(each, Exception)]
        found[name] = errors[0] if errors else (gathered([sums for sums, _ in fine]), fine[0][1])
    return found


def _of_probe(context: MeasureContext) -> Seen:
    """Where nothing is trained: of the probe samples, in evaluation mode, without an update."""
    net, batches = context.recalibrated(), list(context.batches())
    total = sum(counted(labels, context.loss) for _, labels in batches)
    watch = SignalWatch(net, samples=sum(len(labels) for _, labels in batches))
    try:
        for inputs, labels in batches:
            with adapted(net):  # before training the net may be a copy of the context's
                outputs = net(inputs)
                loss = scalar_loss(context.loss(outputs, labels))
            if not loss.requires_grad:
                raise UserError(
                    "Signal needs a net with a weight that is trained, but all weights of this one are frozen: set "
                    "requires_grad, or leave Signal out."
                )
            terms = counted(labels, context.loss)
            if not terms:
                # The mean over none may be 0 / 0. Gradients are 0, and count as those of other ignored labels.
                loss = torch.stack([x.sum() for x in tensors_in(outputs) if x.ndim and x.requires_grad]).sum()
            (loss * (terms / total)).backward()
    except BaseException:
        watch.close()
        raise
    return {key: sums for key, sums in watch.stop().items() if not key.endswith("/update")}, watch.shape
