"""Risk, error and cost after every epoch, with learning rate and speed."""

import time

import pytorch_lightning as pl
from typing_extensions import override

from callbacks.log import log_results
from callbacks.measure import EpochCallback
from callbacks.protocol import metrics_of

__all__ = ["TrainingMetrics"]


class TrainingMetrics(EpochCallback):
    """Logs what ``pl_module.metrics()`` returns for every member, and how the epoch went.

    Definition:
        The risk L is the mean loss a sample, the error the share of wrong top-1 predictions, the cost C = L + λ/2 ‖w -
        centre‖². Running numbers are of the augmented batches as they were trained on, the others un-augmented at the
        epoch's final weights.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``train/risk_running`` | nats | mean over the epoch's augmented batches, each before its step |
        | ``train/error_running`` | share | the same of the error |
        | ``train/risk``, ``val/risk``, ``test/risk`` | nats | un-augmented, at the epoch's final weights |
        | ``train/error``, ``val/error``, ``test/error`` | share | the same of the error |
        | ``train/penalty`` | nats | λ/2 ‖w - centre‖², of the parameters that ``model.decays`` names |
        | ``train/cost`` | nats | L + penalty |
        | ``train/cost_paper`` | nats | L + penalty / B, B the batch size |
        | ``lr`` | 1 | learning rate of the epoch |
        | ``time/epoch`` | s | training batches and evaluation, without the measures |

    Reading:
        Guessing among ten classes has risk ln 10 = 2.303 and error 0.9. ``train/risk`` against ``train/risk_running``
        is augmentation and the epoch's progress; ``test/error`` minus ``train/error`` the generalisation gap. Depth 20
        after 6 epochs of CIFAR-10: risk 1.392 plain, 1.159 residual, test error 0.511 and 0.413.

    Cost:
        Nothing beside the evaluation that the trainer does: sums are kept as batches go by.

    Breaks:
        * With ``model.loss: squared_error`` risks are 1/(2m) Σ ‖f - e_y‖², not nats.
        * Tables 1 and 2 of Yu & Tomasi print C with the penalty divided by the batch size 128: compare
          ``train/cost_paper``.
        * It is no measure that a run could do without: what it raises stops the run, since all ranks sum together.
        * An epoch without evaluation has the running numbers only; ``val/...`` needs ``data.val_size``.
        * The test set is evaluated every epoch and must select nothing: what is reported is the final epoch.

    Source:
        Yu & Tomasi (2019), Tables 1 and 2, Fig. 2.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one.
        at_start: also before the first training step.
    """

    def __init__(self, every_n_epochs: int = 1, at_start: bool = True) -> None:
        super().__init__(every_n_epochs, at_start)
        self._started = time.perf_counter()

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._started = time.perf_counter()

    @override
    def observe(self, trainer: pl.Trainer, pl_module: pl.LightningModule, epoch: int) -> None:
        results = metrics_of(pl_module)
        if trainer.is_global_zero:
            whole_run = {}
            if trainer.optimizers:  # else nothing is trained here, only measured
                whole_run = {"lr": trainer.optimizers[0].param_groups[0]["lr"]}
                if epoch:
                    whole_run["time/epoch"] = time.perf_counter() - self._started
            log_results(trainer, epoch, "learning", results, whole_run, self.strict)
