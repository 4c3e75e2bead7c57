"""Batches that a net or a loss does not take: what is wrong with them, in words, from what PyTorch says of it."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from lightning_app.common.calls import sample_tensors
from lightning_app.common.errors import UserError, first_line
from lightning_app.measures.core.losses import NoClassError, classes_second, ignored_label
from lightning_app.modules.backends import Pass

FAULTS = (IndexError, RuntimeError, ValueError)  # of a pass over such a batch
SHOWN = 3  # labels that a message names
ONE_VALUE = "Expected more than 1 value per channel"  # torch's message where a normalisation gets a batch of one
# Words of torch's messages about samples or labels that a layer or a loss does not take; shapes and types say the rest.
BATCH_FAULTS = re.compile(
    r"to have \d+ channels|shapes cannot be multiplied|input to conv|padded input size|xpected (\dD )?input|input_size|"
    r"running_mean should|same dtype|Input type \((?!torch.cuda)|scalar types|out of range in self|"
    r"target dtype|expected scalar type Long|target tensor|type for target"
)
LABEL_FAULTS = ("Target ", "Class values must be")  # in messages of cross_entropy and one_hot


@contextmanager
def explained(what: str, passes: Callable[[], Mapping[str, Pass]]) -> Iterator[None]:
    """Within it, what a pass over a batch raises is a `UserError` that says what is wrong with the batch, where that is known.

    Args:
        what: the nets do, such as "be evaluated on a batch".
        passes: of the nets by their names, asked for where one has failed.
    """
    try:
        yield
    except FAULTS as error:
        if why := _explanation(error, passes(), what):
            raise UserError(why) from error
        raise


def _explanation(error: Exception, passes: Mapping[str, Pass], what: str) -> str:
    """Why nets cannot do this with a batch, and what to do; empty where that is not known."""
    if ONE_VALUE in str(error):
        return (
            f"a normalisation layer cannot {what}, which has one value per channel: {first_line(error)}. Set "
            "data.batch_size so that no batch has a single sample, or data.drop_last if the data have that option."
        )
    of_labels = isinstance(error, NoClassError) or (
        not isinstance(error, ValueError) and any(words in str(error) for words in LABEL_FAULTS)
    )
    for name, each in passes.items() if of_labels else ():
        if wrong := wrong_labels(each).rstrip("."):
            return (
                f"member '{name}' cannot {what}: {wrong}. Correct the labels, or give the net as many outputs as there are "
                "classes (num_classes, or whatever its option is called)."
            )
    said = first_line(error.__cause__ or error)  # a loss of ours has words for who only measures
    if BATCH_FAULTS.search(said):
        first = next(iter(passes.values()))
        tensors = (*sample_tensors(first.images), first.labels)
        given = ", ".join(f"{tuple(each.shape)} {each.dtype}" for each in tensors)
        return (
            f"a net cannot {what} (samples and labels: {given}): {said.rstrip('.')}. Expected samples that fit its first "
            "layer, outputs (samples, classes), and one label per sample, the int64 number of its class. If they are so, "
            "layers of the net do not fit each other: SKIPSCOPE_TRACEBACK=1 shows where it failed."
        )
    return ""


def wrong_labels(each: Pass) -> str:
    """The labels that are not among the classes of the net's outputs, in words; empty if all are."""
    try:
        with torch.no_grad():
            outputs = copy.deepcopy(each.net)(each.images)
    except (IndexError, RuntimeError) as error:  # of a net that computes its loss itself
        return first_line(error)
    classes = classes_second(outputs, each.labels, each.loss).shape[1]
    outside = (each.labels < 0) | (each.labels >= classes)
    wrong = outside & (each.labels != ignored_label(each.loss))
    wrong = wrong if wrong.any() else outside  # a squared error ignores no label
    found = [
        f"{''.join(f'token {token} of ' for token in tokens)}sample {sample} of the batch has label {label}"
        for (sample, *tokens), label in zip(wrong.nonzero().tolist()[:SHOWN], each.labels[wrong].tolist())
    ]
    return f"{', '.join(found)}, and the net has outputs 0 to {classes - 1}" if found else ""
