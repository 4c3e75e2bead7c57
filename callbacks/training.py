"""What is logged and seen of a running fit: risk, error, cost and speed; a line an epoch, and on a terminal a bar below."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import RichProgressBar
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities import rank_zero_only
from typing_extensions import override

from callbacks.clock import EpochCallback
from callbacks.log import LoggingCallback, log_results
from callbacks.protocol import metrics_of
from lightning_app.common.errors import UserError
from lightning_app.common.isolation import wait_for
from lightning_app.common.numbers import brief, duration, plural
from lightning_app.runs.checkpoints import stopped_early
from lightning_app.runs.loggers import whole_epochs
from lightning_app.runs.members import members_of

PATIENCE = 10.0  # seconds of batches before it is estimated how long all of them take
SHOWN = {"risk": "train/risk_running", "test error": "test/error", "val error": "val/error"}


class TrainingMetrics(EpochCallback):
    """Logs what ``pl_module.metrics()`` returns for every member, the learning rate and the time of the epoch.

    Definition:
        The risk L is the mean loss per sample, the error the share of wrong top-1 predictions, the cost C = L + λ/2 ‖w -
        centre‖². Running numbers are from the augmented batches during training; the others are without augmentation, at the
        epoch's final weights.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``train/risk_running`` | nats | mean over the epoch's augmented batches, each before its step |
        | ``train/error_running`` | share | the same of the error |
        | ``train/risk``, ``val/risk``, ``test/risk`` | nats | un-augmented, at the epoch's final weights |
        | ``train/error``, ``val/error``, ``test/error`` | share | the same of the error |
        | ``train/risk_ema``, ``val/risk_ema``, ``test/risk_ema`` | nats | at averaged weights (``model.ema_decay``) |
        | ``train/error_ema``, ``val/error_ema``, ``test/error_ema`` | share | the same of the error |
        | ``train/penalty`` | nats | λ/2 ‖w - centre‖² of what ``model.decays`` names; / B with ``penalty_scale: batch`` |
        | ``train/cost`` | nats | L + penalty |
        | ``train/cost_paper`` | nats | L + λ/2 ‖w - centre‖² / B, B the batch size, whatever ``penalty_scale`` |
        | ``lr`` | 1 | learning rate of the epoch; of the next step if the schedule counts steps |
        | ``time/epoch`` | s | training batches and evaluation, without the measures |

    Interpretation:
        Guessing among ten classes has risk ln 10 = 2.303 and error 0.9. ``train/risk`` and ``train/risk_running`` differ by
        augmentation and the epoch's progress; ``test/error`` minus ``train/error`` the generalisation gap. Depth 20 after 6
        epochs of CIFAR-10: risk 1.392 plain, 1.159 residual, test error 0.511 and 0.413.

    Cost:
        Nothing beyond the trainer's own evaluation: sums are updated with each batch.

    Breaks:
        * With ``model.loss: squared_error`` risks are 1/(2m) Σ ‖f - e_y‖², not nats.
        * Tables 1 and 2 of Yu & Tomasi print C with the penalty divided by the batch size 128: compare
          ``train/cost_paper``.
        * Unlike with measures, an error in it stops the run, since all ranks sum together.
        * An epoch without evaluation has only the running numbers; ``val/...`` needs ``data.val_size``.
        * The test set is evaluated every epoch, but must not be used to select anything: report the final epoch.

    Source:
        Yu & Tomasi (2019), Tables 1 and 2, Fig. 2.

    When it logs: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.
    """

    def __init__(self, **clock: Any) -> None:
        super().__init__(**clock)
        self._started = 0.0
        self._at_end: dict[str, float] = {}

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.enable_validation and math.isinf(trainer.num_training_batches) and not _evaluates_at_ends(trainer):
            raise UserError(
                "trainer.val_check_interval places evaluations within an epoch, but the training data do not say how many "
                "batches an epoch has, so all would be logged as if at its end: set trainer.limit_train_batches."
            )
        self._started = _clock(trainer)  # see `ProgressLines.on_train_start`
        super().on_train_start(trainer, pl_module)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = _clock(trainer)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        wait_for(pl_module.device)
        self._at_end = {**_rate(trainer), "time/epoch": _clock(trainer) - self._started}  # before schedules go on
        super().on_train_epoch_end(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Of an evaluation within an epoch (``trainer.val_check_interval``); that at its end is logged with the epoch."""
        fitting = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if fitting and not trainer.is_last_batch:
            self._within = 0  # what `every_n_steps` has logged after this step had no evaluation yet
            self._observe_within(trainer, pl_module)

    @override
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: float) -> None:
        results = metrics_of(pl_module, self)
        if trainer.is_global_zero:
            whole_run = self._at_end if epoch and epoch == int(epoch) else _rate(trainer)
            within = self.every_n_steps is not None or not _evaluates_at_ends(trainer)
            log_results(trainer, epoch, "learning", results, whole_run, self.strict, within)


def _evaluates_at_ends(trainer: pl.Trainer) -> bool:
    """Whether nets are evaluated at the ends of epochs only."""
    return isinstance(trainer.val_check_interval, float) and trainer.val_check_interval == 1  # 1: each batch


def _rate(trainer: pl.Trainer) -> dict[str, float]:
    """Of the first optimizer, if there is one: else nothing is trained, only measured."""
    return {"lr": trainer.optimizers[0].param_groups[0]["lr"]} if trainer.optimizers else {}


def _clock(trainer: pl.Trainer) -> float:
    """Seconds, of a clock that stands still while nets are measured."""
    callbacks = getattr(trainer, "callbacks", ())  # of no type known to checkers
    return time.perf_counter() - sum(each.spent for each in callbacks if isinstance(each, LoggingCallback))


class ProgressLines(pl.Callback):
    """Prints running risk and test error after each epoch: each arm's, over several seeds as mean ± standard deviation.

    How long an epoch takes is said once, as soon as it is known: within the first one if that takes long, else after it.
    How long the evaluation before training takes is said only if that is long.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._before, self._epoch = _Forecast(), _Forecast()
        self._evaluated = 0  # batches before training
        self._trained = self._whole = False  # whole: the epoch under way has begun here, and not before a resume

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._begin()  # nothing of an earlier fit counts

    @override
    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *batch: Any) -> None:
        if trainer.sanity_checking:  # what Lightning calls the evaluation before training
            self._evaluated += 1
            if seconds := self._before.seconds(self._evaluated, sum(trainer.num_sanity_val_batches)):
                self._print(f"the evaluation before training takes about {duration(seconds)}")

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.perf_counter()  # an epoch that a resume goes on with does not start
        if trainer.global_step:
            self._print(f"resuming after epoch {trainer.current_epoch}, step {trainer.global_step}")

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started, self._whole = time.perf_counter(), True
        self._epoch.begin()

    @override
    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *batch: Any) -> None:
        self._trained = True
        if seconds := self._epoch.seconds(batch[-1], trainer.num_training_batches):
            self._say(seconds, trainer.max_epochs, trainer.current_epoch, " without evaluation and measures")

    def _say(self, seconds: float, epochs: int | None, done: int, what: str = "") -> None:
        left = (epochs or -1) - done
        to_go = f"; {left} to go: about {duration(left * seconds)}" if left > 0 else ""
        self._print(f"an epoch takes about {duration(seconds)}{what}{to_go}")
        self._epoch.known = True

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seconds = time.perf_counter() - self._started
        arms = defaultdict(list)
        metrics = metrics_of(pl_module, self)
        for member in members_of(pl_module):
            arms[member.own_arm].append(metrics[member.name])
        words = " | ".join(_words(arm, seeds) for arm, seeds in arms.items())
        within = "" if trainer.is_last_batch else "within "  # where max_steps or max_time ends training
        self._print(f"{within}{_count(trainer.current_epoch, trainer.max_epochs)}  {words}  ({seconds:.1f} s)")
        if self._whole and not self._epoch.known and trainer.current_epoch + 1 != trainer.max_epochs:
            self._say(seconds, trainer.max_epochs, trainer.current_epoch + 1)

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self._trained and trainer.global_step:
            done = plural(whole_epochs(trainer), "epoch")
            early = "leave EarlyStopping out, or give it more patience if that was used up"
            what = early if stopped_early(trainer) else "raise the limit, such as --trainer.max_epochs"
            self._print(f"nothing is left to train after {done}: {what}, to continue")

    @rank_zero_only
    def _print(self, line: str) -> None:
        print(line, flush=True)


class _Forecast:
    """How long all batches take, once that is known."""

    def __init__(self) -> None:
        self.known = False
        self.begin()

    def begin(self) -> None:
        """Batches are counted anew."""
        self._first: tuple[int, float] | None = None  # number and end of the first batch, which is slower than others

    def seconds(self, number: int, of: float) -> float | None:
        """After the batch of this number, of so many (inf: unknown): the first time that it can be said, else None."""
        now = time.perf_counter()
        if self._first is None:
            self._first = (number, now)
        elif not self.known and math.isfinite(of) and now - self._first[1] > PATIENCE:
            self.known = True
            return (now - self._first[1]) / (number - self._first[0]) * of
        return None


class EpochBar(RichProgressBar):
    """Lightning's Rich bar below `ProgressLines`: batches, time and speed, epochs counted as in the lines.

    Args:
        refresh_rate: redraws per second. Each costs about a millisecond of Python beside the training loop.
    """

    def __init__(self, refresh_rate: int = 10) -> None:
        super().__init__(refresh_rate=refresh_rate)

    @override
    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """None: a bank's errors would not fit, and are in the lines above."""
        return {}

    @override
    def _get_train_description(self, current_epoch: int) -> str:
        text = _count(current_epoch, self.trainer.max_epochs)
        return text.ljust(len(self.validation_description))  # else the bars move when the other one comes

    @property
    @override
    def sanity_check_description(self) -> str:
        """What Lightning calls a sanity check is the evaluation before training."""
        return "epoch 0"


def _count(done: int, epochs: int | None) -> str:
    """Which epoch follows, of how many where that is known: steps may be what limits training.

    >>> _count(0, 3), _count(0, -1)
    ('epoch 1/3', 'epoch 1')
    """
    return f"epoch {done + 1}" + (f"/{epochs}" if epochs not in (None, -1) else "")


def _words(arm: str, seeds: Sequence[Mapping[str, float]]) -> str:
    """One arm's numbers.

    >>> _words("plain", [{"test/error": 0.5}, {"test/error": 0.7}])
    'plain (2 seeds) test error 0.6 ± 0.14'
    """
    keys = {label: key for label, key in SHOWN.items() if key in seeds[0]}
    if "test error" in keys:
        keys.pop("val error", None)
    shown = {label: [numbers[key] for numbers in seeds] for label, key in keys.items()}
    if len(seeds) == 1:
        return " ".join([arm, *(f"{label} {value:.4g}" for label, (value,) in shown.items())])
    from lightning_app.statistics.paired import spread  # runs of one seed do without

    over = {label: spread(values) for label, values in shown.items()}
    return " ".join(
        [f"{arm} ({len(seeds)} seeds)", *(f"{label} {brief(s.mean, sd=s.sd)}" for label, s in over.items())]
    )
