"""What a training module and its datamodule agree on before the first batch.

Lightning sets up the datamodule first and the module after it. So the module makes the plan, once a stage, in its ``setup``:
from what the datamodule says of itself (`BatchPlan.for_data`) and from what its nets need. It gives the finished plan back by
``datamodule.use_plan(plan)``, and neither looks into the other again. A module or a datamodule of another project need not
know of any of this: what it does not say has the defaults below.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PAPER_BATCH = 128  # B of the cost as Yu & Tomasi's tables count it, where no datamodule gives its own
OF_DATA = ("batch_size", "sample_shape", "sample_dtype", "num_classes", "eval_splits", "channels_last")


@dataclass(frozen=True)
class BatchPlan:
    """Which batches a stage needs and what is in them."""

    seeds: tuple[int, ...] | None = None  # a training batch is {seed: batch}, a data stream each; None: one bare batch
    channels_last: bool | None = None  # memory format of weights and images; None: not decided
    batch_size: int = PAPER_BATCH  # samples of a training batch, over all ranks
    sample_shape: tuple[int, ...] | None = None  # (C, H, W) of images, (d,) of vectors, (T,) of tokens; None: not known
    sample_dtype: "torch.dtype | None" = None  # int64 of tokens; None: that of the weights
    num_classes: int | None = None
    eval_splits: tuple[str, ...] = ("val",)  # names of the evaluation loaders, in their order

    @classmethod
    def for_data(cls, datamodule: object) -> "BatchPlan":
        """A plan with what a datamodule, anybody's or None, says of itself in attributes of the same names."""
        return cls(**{name: getattr(datamodule, name) for name in OF_DATA if hasattr(datamodule, name)})
