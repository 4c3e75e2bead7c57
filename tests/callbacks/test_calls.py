"""Dict batches, nets with outputs and losses of their own, tokens: the same numbers by every way to a measure."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn

import skipscope
from callbacks import HessianSpectrum, LayerCushion, NoiseStability, Signal, WeightMass
from callbacks.context import MeasureContext
from callbacks.notebook import measure
from callbacks.protocol import loss_of
from lightning_app.common.calls import Inputs, joined, outputs_of, pair_of, returned_loss
from lightning_app.common.errors import UserError
from lightning_app.measures import Hessian, dense
from lightning_app.measures.core.losses import counted, of_samples
from tests.helpers import TIMING, trainer

CLASSES = 7


class Reader(nn.Module):
    """A net as those of transformers: tensors by name, an output object, a loss of its own over tokens that count."""

    def __init__(self, shift: int = 1) -> None:
        super().__init__()
        self.shift = shift
        self.embedding, self.inner, self.head = nn.Embedding(CLASSES, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = torch.tanh(self.inner(self.embedding(input_ids)))
        x = x if attention_mask is None else x * attention_mask[..., None]
        logits = self.head(x.cumsum(1))  # a token knows the ones before it
        loss = None
        if labels is not None:
            seen = logits[:, :-1] if self.shift else logits
            loss = F.cross_entropy(seen.flatten(0, 1), labels[:, self.shift :].flatten())
        return SimpleNamespace(logits=logits, loss=loss)


def texts(samples: int = 6, length: int = 5) -> dict[str, torch.Tensor]:
    """Of different lengths, so that the mean over tokens is not that over samples."""
    generator = torch.Generator().manual_seed(samples)
    tokens = torch.randint(CLASSES, (samples, length), generator=generator)
    mask = (torch.arange(length) < 2 + torch.arange(samples)[:, None] % (length - 1)).long()
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def reader(shift: int = 1) -> Reader:
    torch.manual_seed(0)
    return Reader(shift).eval()


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("limit", [None, 2])
def test_the_risk_is_the_loss_that_the_net_returns_for_all_tokens_together(shift, limit):
    net, batch = reader(shift), texts()
    context = MeasureContext(net, [batch])
    context.max_batch = limit
    returned = net(**batch)
    found = LayerCushion().evaluate(context)
    assert found["probe/risk"] == pytest.approx(returned.loss.item(), rel=1e-6)
    seen, said = (returned.logits[:, :-1], batch["labels"][:, 1:]) if shift else (returned.logits, batch["labels"])
    counts = said != -100
    assert found["probe/error"] == pytest.approx(float((seen.argmax(-1) != said)[counts].float().mean()), rel=1e-6)
    assert context.loss.shift == shift and counted(batch["labels"], context.loss) == int(counts.sum())
    of_one = of_samples(returned.logits[1:2], batch["labels"][1:2], context.loss)[0]
    alone = net(**{name: value[1:2] for name, value in batch.items()}).loss
    assert float(of_one) == pytest.approx(alone.item(), rel=1e-5)
    gradient, (whole,) = context.gradient(), torch.autograd.grad(returned.loss, [net.inner.weight])
    torch.testing.assert_close(gradient["inner.weight"], whole, rtol=1e-4, atol=1e-7)


def test_products_with_the_hessian_of_the_returned_loss_are_those_of_functional_differentiation():
    net, batch = reader(), texts()
    weights = {name: weight.detach().double() for name, weight in net.named_parameters()}
    wide = reader().double()

    def risk(named):
        return torch.func.functional_call(wide, named, kwargs=batch).loss

    exact = torch.func.hessian(risk)(weights)["inner.weight"]["inner.weight"].reshape(36, 36)
    found = HessianSpectrum(k=3, parts=True).evaluate(MeasureContext(net.double(), [batch]))
    of_layer = torch.linalg.eigvalsh(exact)
    context = MeasureContext(net, [batch])
    ours = dense(Hessian(net, context.samples(9), context.loss, names=["inner.weight"], double=True))
    torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-12)
    assert float(of_layer[-1]) <= found["hessian/top1"] * (1 + 1e-6)  # of a diagonal block


class TheirModule(pl.LightningModule):
    """Anybody's module around such a net: it has no loss for measures and no probe."""

    def __init__(self) -> None:
        super().__init__()
        self.model = reader()

    def training_step(self, batch, batch_idx):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        rows = texts(8)
        samples = [{name: value[row] for name, value in rows.items()} for row in range(8)]
        return torch.utils.data.DataLoader(samples, batch_size=4)


def measures():
    return [
        LayerCushion(),
        WeightMass(),
        HessianSpectrum(k=1, steps=4, samples=4),
        NoiseStability(every_n_epochs=1, draws=1),
    ]


def test_callbacks_watch_and_measure_find_the_same_numbers(tmp_path):
    """Before the first step; training around the callbacks and around the watch is the same."""
    module = TheirModule()
    pl_trainer = trainer(1, callbacks=[*measures(), Signal()], logger=skipscope.RunLogger(tmp_path / "theirs"))
    pl_trainer.fit(module)
    net, batch = reader(), texts(8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with skipscope.watch(
        net, [batch], optimizer, every=2, folder=tmp_path / "watched", measures=[*measures(), Signal()], total_steps=2
    ):
        for rows in (slice(4), slice(4, 8)):
            optimizer.zero_grad()
            net(**{name: value[rows] for name, value in batch.items()}).loss.backward()
            optimizer.step()
    logs = [skipscope.open_run(tmp_path / name).log() for name in ("theirs", "watched")]
    first, last = (
        [dict(log[log["step"] == step][["name", "value"]].map(repr).values.tolist()) for log in logs] for step in (0, 2)
    )  # as text: a NaN is itself
    for ours, theirs in (first, last):
        kept = {name: value for name, value in ours.items() if not name.strip("'").startswith(TIMING)}
        assert len(kept) > 60 and not any("failed" in name for name in kept)
        assert kept == {name: value for name, value in theirs.items() if name in kept}
    by_hand = measure(
        reader(), {name: batch[name] for name in ("input_ids", "attention_mask")}, batch["labels"], measures()
    )
    assert {repr(name): repr(value) for name, value in by_hand.items()}.items() <= first[0].items()


def test_several_tensors_by_position_and_a_criterion_that_training_flattens_for():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, CLASSES)

        def forward(self, x, y):
            return self.layer(x + y), "more"

    net, (x, y) = Two(), torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(20).reshape(4, 5) % CLASSES
    module = SimpleNamespace(criterion=nn.CrossEntropyLoss(ignore_index=3))
    loss = loss_of(module)
    found = LayerCushion().evaluate(MeasureContext(net, [(x, y, labels)], loss))
    logits = net(x, y)[0]
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=3)
    assert found["probe/risk"] == pytest.approx(expected.item(), rel=1e-6)
    counts = labels != 3
    assert found["probe/error"] == pytest.approx(float((logits.argmax(-1) != labels)[counts].float().mean()))
    again = LayerCushion().evaluate(MeasureContext(net, [((x, y), labels)], loss))
    assert again["probe/risk"] == found["probe/risk"]


def test_inputs_are_cut_joined_and_converted_like_one_tensor():
    several = Inputs([torch.arange(6.0).reshape(3, 2), None], {"mask": torch.ones(3, 1, dtype=torch.long)})
    parts = [several[torch.tensor([2, 0])], several[1:2]]
    both = joined(parts).to(dtype=torch.float64)
    assert both.placed[0].tolist() == [[4.0, 5.0], [0.0, 1.0], [2.0, 3.0]] and both.placed[1] is None
    assert both.placed[0].dtype == torch.float64 and both.named["mask"].dtype == torch.long
    assert (len(both), both.numel(), both.is_floating_point(), tuple(both.shape)) == (3, 9, True, (3, 2))


@pytest.mark.parametrize(
    ("returned", "shape", "loss"),
    [
        (SimpleNamespace(logits=torch.ones(2, 3), loss=torch.tensor(2.0)), (2, 3), 2.0),
        ({"last_hidden_state": torch.ones(2, 4), "pooled": torch.ones(2)}, (2, 4), None),
        ({"out": torch.ones(2, 5), "aux": torch.ones(2)}, (2, 5), None),
        ((torch.tensor(1.5), torch.ones(2, 3)), (2, 3), 1.5),
    ],
)
def test_one_tensor_of_what_a_net_returns(returned, shape, loss):
    found = outputs_of(returned)
    assert tuple(found.shape) == shape
    assert (None if returned_loss(found) is None else float(returned_loss(found))) == loss


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(3), "pairs \\(inputs, labels\\) or dicts with labels, got a tensor \\(3,\\)"),
        (
            {"input_ids": torch.zeros(2, 3)},
            "labels of a probe batch are a tensor with a row a sample, got a NoneType in a dict",
        ),
        (
            {"input_ids": ["a", "b"], "labels": torch.zeros(2)},
            "tensors with a row for each of its 2 labels, got 2 of them",
        ),
        (
            {"pixels": torch.zeros(2, 3), "labels": torch.zeros(2)},
            "has pixels for the forward of Reader, which takes input_ids",
        ),
    ],
)
def test_batches_that_cannot_be_used_are_refused_with_what_is_expected(batch, message):
    with pytest.raises(UserError, match=message):
        pair_of(batch, reader())


def test_a_net_that_returns_nothing_to_look_at_is_refused():
    with pytest.raises(UserError, match="one tensor of outputs, Silent returns a str: let it return a tensor"):
        outputs_of("nothing", "Silent")


def test_labels_without_a_returned_loss_are_said_so():
    class Mute(Reader):
        def forward(self, input_ids, labels=None):
            return self.head(self.embedding(input_ids))

    batch = {name: texts()[name] for name in ("input_ids", "labels")}
    with pytest.raises(UserError, match=r"takes `labels`, .* and it returned none"):
        LayerCushion().evaluate(MeasureContext(Mute(), [batch]))
