"""Dict batches, nets with outputs and losses of their own, tokens: the same numbers by every way to a measure."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import skipscope
from callbacks import (
    BnLambda,
    DistanceFromStart,
    DrivingForce,
    EffectiveDepth,
    HessianSpectrum,
    InterlayerCushion,
    LayerCushion,
    NoiseStability,
    Scalar,
    Signal,
    WeightMass,
)
from callbacks.context import MeasureContext
from callbacks.notebook import measure
from callbacks.protocol import loss_of
from lightning_app.common.calls import Inputs, joined, outputs_of, pair_of, returned_loss
from lightning_app.common.errors import UserError
from lightning_app.measures import Hessian, dense, noise_injection
from lightning_app.measures.core.losses import counted, cross_entropy, of_samples
from lightning_app.networks import GPT, CifarResNet, SimplifiedNet
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


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": CLASSES, "n_positions": 5, "n_embd": 8, "n_layer": 1, "n_head": 2}
    dropouts = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


def vit() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.VisionTransformer(8, 4, 1, 2, 8, 16, num_classes=CLASSES).eval()


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(8) % CLASSES


def rows_of(batch, rows):
    return {k: v[rows] for k, v in batch.items()} if isinstance(batch, dict) else tuple(v[rows] for v in batch)


def risk_of(net, batch):
    return net(**batch).loss if isinstance(batch, dict) else F.cross_entropy(net(batch[0]), batch[1])


class TheirModule(pl.LightningModule):
    """Anybody's module around such a net: it has no loss for measures and no probe."""

    def __init__(self, net: nn.Module, batch) -> None:
        super().__init__()
        self.model, self._batch = net, batch

    def training_step(self, batch, batch_idx):
        return risk_of(self.model, batch if isinstance(batch, dict) else tuple(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader([rows_of(self._batch, row) for row in range(8)], batch_size=4)


def measures():
    return [
        LayerCushion(),
        WeightMass(),
        HessianSpectrum(k=1, steps=4, samples=4, exact=0),
        NoiseStability(every_n_epochs=1, draws=1, samples=4, strengths=[0.1]),
        BnLambda(),
        DrivingForce(samples=4),
        EffectiveDepth(samples=4, gradient_samples=2),
    ]


def ours() -> nn.Module:
    torch.manual_seed(0)
    return GPT(CLASSES, context=5, width=8, depth=1, heads=2).eval()


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (reader, texts(8)),
        (gpt2, texts(8)),
        (vit, pictures()),
        (ours, (texts(8)["input_ids"], torch.arange(8) % CLASSES)),
    ],
    ids=["reader", "gpt2", "vit", "ours"],
)
def test_callbacks_watch_and_measure_find_the_same_numbers(tmp_path, make, batch):
    """Before the first step and after the last; training around the callbacks and around the watch is the same."""
    logger = skipscope.RunLogger(tmp_path / "theirs")
    trainer(1, callbacks=[*measures(), Signal()], logger=logger).fit(TheirModule(make(), batch))
    net, more = make(), {"measures": [*measures(), Signal()], "total_steps": 2}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with skipscope.watch(net, [batch], optimizer, every=2, folder=tmp_path / "watched", **more):
        for rows in (slice(4), slice(4, 8)):
            optimizer.zero_grad()
            risk_of(net, rows_of(batch, rows)).backward()
            optimizer.step()
    logs = [skipscope.open_run(tmp_path / name).log() for name in ("theirs", "watched")]
    first, last = (
        [dict(log[log["step"] == step][["name", "value"]].map(repr).values.tolist()) for log in logs] for step in (0, 2)
    )  # as text: a NaN is itself
    for ours, theirs in (first, last):
        kept = {name: value for name, value in ours.items() if not name.strip("'").startswith(TIMING)}
        assert len(kept) > 60 and not any("failed" in name for name in kept)
        assert kept == {name: value for name, value in theirs.items() if name in kept}
    samples = {k: v for k, v in batch.items() if k != "labels"} if isinstance(batch, dict) else batch[0]
    labels = batch["labels"] if isinstance(batch, dict) else batch[1]
    by_hand = measure(make(), samples, labels, measures())
    assert {repr(name): repr(value) for name, value in by_hand.items()}.items() <= first[0].items()


@pytest.mark.parametrize(
    ("make", "samples"),
    [(lambda: SimplifiedNet(5, False, width=2), 32), (lambda: CifarResNet(8, width=2).eval(), 32), (vit, 8)],
    ids=["plain", "residual", "vit"],
)
def test_a_default_device_other_than_the_nets_changes_no_number(make, samples):
    """On "meta" tensors have no numbers: whatever is made there by mistake cannot be used, as on a GPU."""
    torch.manual_seed(0)
    net, inputs, labels = make(), torch.randn(8, 3, samples, samples), [number % CLASSES for number in range(8)]
    every = measures()
    every += [HessianSpectrum(exact=0, k=1, steps=4, samples=4, matrix="gauss_newton"), DistanceFromStart(), Signal()]
    every += [Scalar("gradient", lambda context: sum(float(each.norm()) for each in context.gradient().values()))]
    for mode in ("eval", "batch1") if isinstance(net, CifarResNet) else ("eval",):
        every += [InterlayerCushion(samples=2, probes=probes, bn_modes=mode) for probes in (2, None)]

    def numbers() -> list[dict[str, str]]:
        return [{k: repr(v) for k, v in measure(net, inputs, labels, deepcopy(one)).items()} for one in every]

    expected = numbers()
    torch.set_default_device("meta")
    try:
        found = numbers()
    finally:
        torch.set_default_device(None)
    assert sum(map(len, found)) > 60 and found == expected


def test_a_product_with_a_gpt2_is_torchs_own_and_does_not_depend_on_the_chunk(monkeypatch):
    net, batch = gpt2().double(), texts(6)
    context = MeasureContext(net, [batch])
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    vector = {name: torch.randn(w.shape, generator=generator, dtype=w.dtype) for name, w in weights.items()}

    def gradient(named):
        return torch.func.grad(lambda each: torch.func.functional_call(net, each, kwargs=batch).loss)(named)

    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.func.jvp(gradient, (weights,), (vector,))[1]
    flat = torch.cat([part.flatten() for part in vector.values()])
    chunks = set()
    for graph in (2**30, 2**16):
        monkeypatch.setattr("lightning_app.measures.curvature.hessian.GRAPH", graph)
        hessian = Hessian(net, context.samples(6), context.loss, memory=0)
        chunks.add(hessian.chunk)
        parts = {name: (hessian @ flat)[where] for name, where in hessian.slices().items()}
        for name, part in expected.items():  # the loss of transformers is in float32
            torch.testing.assert_close(parts[name], part.flatten(), rtol=1e-4, atol=1e-6)
    assert len(chunks) == 2 and max(chunks) == 6


@torch.no_grad()
def test_samples_whose_label_is_ignored_count_in_nothing():
    torch.manual_seed(0)
    net, (x, labels) = vit(), pictures()
    ignoring = labels.masked_fill(labels % 2 == 0, -100)
    ignoring[4:] = -100  # a batch without any
    kept, few = ignoring != -100, MeasureContext(net, [(x, ignoring)])
    few.max_batch = 4
    alone = MeasureContext(net, [(x[kept], labels[kept])])
    found, expected = (LayerCushion().evaluate(context) for context in (few, alone))
    assert found["probe/risk"] == pytest.approx(expected["probe/risk"], rel=1e-6)
    assert found["probe/error"] == expected["probe/error"] and counted(ignoring, few.loss) == int(kept.sum()) == 2
    for name, gradient in alone.gradient().items():
        torch.testing.assert_close(few.gradient()[name], gradient, rtol=1e-4, atol=1e-7)
    all_of, some_of = (noise_injection(net, context.batches(), [0.3], draws=1)["relative"] for context in (few, alone))
    torch.testing.assert_close(all_of.risk, some_of.risk, rtol=1e-5, atol=1e-7)
    assert torch.equal(all_of.error, some_of.error)
    hessians = [Hessian(net, context.samples(8), context.loss, names=["heads.head.bias"]) for context in (few, alone)]
    torch.testing.assert_close(*map(dense, hessians), rtol=1e-4, atol=1e-6)
    signals = [Signal().evaluate(context) for context in (few, alone)]
    names = [name for name in signals[1] if name.endswith("/weight_gradient")]
    ours, theirs = ([each[name] for name in names] for each in signals)
    assert names and ours == pytest.approx(theirs, rel=1e-4)


def test_a_batch_of_ignored_labels_alone_does_not_spoil_the_others_where_its_mean_is_0_over_0():
    def smoothed(outputs, labels):
        logs, counts = F.log_softmax(outputs, 1), labels != -100
        picked = 0.9 * logs.gather(1, labels.clamp(min=0)[:, None])[:, 0] + 0.1 * logs.mean(1)
        return -(picked * counts).sum() / counts.sum()

    torch.manual_seed(0)
    net, some = nn.Linear(2, 3), (torch.randn(3, 2), torch.tensor([0, -100, 2]))
    ignored = torch.randn(2, 2), torch.tensor([-100, -100])
    alone, together = (MeasureContext(net, probe, smoothed) for probe in ([some], [some, ignored]))
    torch.testing.assert_close(together.gradient(), alone.gradient())
    hessians = [Hessian(net, context.samples(5), smoothed) for context in (alone, together)]
    torch.testing.assert_close(*map(dense, hessians))
    gradients = [Signal().evaluate(context)["signal/layer01/weight_gradient"] for context in (alone, together)]
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-6)
    joined = MeasureContext(net, [tuple(map(torch.cat, zip(some, ignored)))], smoothed)
    of_outputs = [Signal().evaluate(context)["signal/layer01/gradient"] for context in (together, joined)]
    assert of_outputs[0] == pytest.approx(of_outputs[1], rel=1e-6)


def test_the_loss_that_a_net_in_half_precision_returns():
    half, batch = reader().bfloat16(), texts()
    risk = LayerCushion().evaluate(MeasureContext(half, [batch]))["probe/risk"]
    assert risk == pytest.approx(LayerCushion().evaluate(MeasureContext(reader(), [batch]))["probe/risk"], rel=0.02)


def test_a_bound_knows_the_label_that_the_module_ignores():
    torch.manual_seed(0)
    net, x, labels = SimplifiedNet(5), torch.randn(4, 3, 32, 32), torch.tensor([1, 255, 3, 5])
    context = MeasureContext(net, [(x, labels)], nn.CrossEntropyLoss(ignore_index=255))
    assert NoiseStability(samples=4).evaluate(context)["noise/bound"].count == 3


def test_a_bound_counts_no_sample_whose_label_is_ignored():
    torch.manual_seed(0)
    net, x, labels = SimplifiedNet(5), torch.randn(6, 3, 32, 32), torch.tensor([1, -100, 3, -100, 5, 6])
    found = NoiseStability(samples=6).evaluate(MeasureContext(net, [(x, labels)]))["noise/bound"]
    alone = NoiseStability(samples=6).evaluate(MeasureContext(net, [(x[labels >= 0], labels[labels >= 0])]))
    assert found.count == alone["noise/bound"].count == 4
    assert found.margin == pytest.approx(alone["noise/bound"].margin, nan_ok=True, rel=1e-5)


@pytest.mark.parametrize("places", [6, CLASSES])
@pytest.mark.parametrize("tokens", [False, True])
def test_classes_of_a_convolution_come_second_also_where_they_are_as_many_as_positions(places, tokens):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv1d(3, 4, 1), nn.Linear(4, CLASSES) if tokens else nn.Conv1d(4, CLASSES, 1)

        def forward(self, x):
            h = torch.relu(self.first(x))
            return self.last(h.mT if tokens else h)

    torch.manual_seed(0)
    net, x, labels = Net(), torch.randn(4, 3, places), torch.randint(CLASSES, (4, places))
    classes = net(x).mT if tokens else net(x)

    def of_its_own(outputs, labels):
        return F.cross_entropy(outputs.mT if tokens else outputs, labels)

    for loss in (cross_entropy, nn.CrossEntropyLoss(), of_its_own):
        context = MeasureContext(net, [(x, labels)], loss_of(SimpleNamespace(loss=loss)))
        found = LayerCushion().evaluate(context)
        assert found["probe/risk"] == pytest.approx(F.cross_entropy(classes, labels).item(), rel=1e-6)
        assert found["probe/error"] == pytest.approx((classes.argmax(1) != labels).float().mean().item(), rel=1e-6)
    expected = F.cross_entropy(classes.double(), labels, reduction="none").mean(1)
    torch.testing.assert_close(of_samples(net(x), labels, context.loss)[0], expected)


def test_a_loss_that_holds_another_one_is_taken_itself():
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.criterion = nn.CrossEntropyLoss()

        def forward(self, outputs, labels):
            return self.criterion(outputs / 0.1, labels)

    torch.manual_seed(0)
    net, x, labels = nn.Conv1d(2, 3, 1), torch.randn(4, 2, 5), torch.randint(3, (4, 5))
    found = measure(net, x, labels, LayerCushion(), loss=Tempered())["probe/risk"]
    assert found == pytest.approx(Tempered()(net(x), labels).item(), rel=1e-6)


def test_weights_in_what_a_loss_holds_ask_it_for_no_other_labels():
    """Those of a CrossEntropyLoss itself do: all of its classes are tried."""

    class FromOne(nn.Module):
        def __init__(self):
            super().__init__()
            self.criterion = nn.CrossEntropyLoss(torch.ones(3))

        def forward(self, outputs, labels):
            return self.criterion(outputs, labels - 1)

    torch.manual_seed(0)
    net, x, labels = nn.Linear(2, 3), torch.randn(6, 2), torch.arange(6) % 3
    expected = measure(net, x, labels, HessianSpectrum())["hessian/top1"]
    found = measure(net, x, labels + 1, HessianSpectrum(), loss=FromOne())["hessian/top1"]
    assert found == pytest.approx(expected, rel=1e-4)


class Flattening(nn.CrossEntropyLoss):
    def forward(self, outputs, labels):
        return super().forward(outputs.flatten(0, -2), labels.flatten())


class Focal(nn.CrossEntropyLoss):
    """Written for images: classes second."""

    def forward(self, outputs, labels):
        each = F.cross_entropy(outputs, labels, reduction="none")
        return (each * (1 - torch.exp(-each))).mean()


@pytest.mark.parametrize(("kind", "places"), [(Flattening, 6), (Flattening, CLASSES), (Focal, 6)])
def test_a_cross_entropy_of_ones_own_may_flatten_tokens_by_itself(kind, places):
    torch.manual_seed(0)
    net, x, labels = nn.Linear(3, CLASSES), torch.randn(4, places, 3), torch.randint(CLASSES, (4, places))
    expected = kind()(net(x).flatten(0, 1), labels.flatten()).item()
    assert MeasureContext(net, [(x, labels)], kind()).loss(net(x), labels).item() == pytest.approx(expected, rel=1e-6)
    assert measure(net, x, labels, LayerCushion(), loss=kind())["probe/risk"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shift", [0, 1])
def test_what_a_returned_loss_looks_at_is_seen_without_labels_of_our_own(shift):
    """Of a net whose outputs are all alike, that is frozen, has samples without labels, and takes no label but its classes."""

    class Strict(Reader):
        def forward(self, input_ids, labels=None):
            found = super().forward(input_ids)
            if labels is not None:
                counts = labels[:, shift:] != -100
                hot = F.one_hot(labels[:, shift:][counts], CLASSES)
                seen = found.logits[:, : found.logits.shape[1] - shift][counts]
                found.loss = -(seen.log_softmax(-1) * hot).sum(-1).mean()
            return found

    net, batch = Strict().eval().requires_grad_(False), texts()
    nn.init.zeros_(net.head.weight), nn.init.zeros_(net.head.bias)
    batch["labels"][0] = -100
    context = MeasureContext(net, [{name: batch[name] for name in ("input_ids", "labels")}])
    next(context.batches())
    assert context.loss.shift == shift


def test_a_layer_under_two_names_is_trained_as_before_after_its_loss_was_looked_at():
    class Twice(Reader):
        def __init__(self):
            super().__init__(0)
            self.again = self.inner

    net, tokens = Twice(), texts()["input_ids"]
    measure(net, {"input_ids": tokens}, tokens, LayerCushion())
    assert isinstance(net.inner.weight, nn.Parameter)
    assert {name for name, _ in net.named_parameters()} == {name for name, _ in Reader(0).named_parameters()}


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
    assert loss is module.criterion  # so that a watch and a measurement by hand take it as a module does
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
    "extra", [lambda x: x.mean().reshape(1), lambda x: x.new_ones(2, len(x), 4)]
)  # a loss, a state
def test_of_several_outputs_the_first_with_a_row_a_sample_is_looked_at(extra):
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x):
            return extra(x), self.fc(x)

    net, x, labels = Several(), torch.randn(6, 4), torch.arange(6) % 3
    found = LayerCushion().evaluate(MeasureContext(net, [(x, labels)]))
    assert found["probe/risk"] == pytest.approx(F.cross_entropy(net.fc(x), labels).item(), rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(3), "a batch \\(inputs, labels\\) or a dict with labels, got a tensor \\(3,\\)"),
        (
            {"input_ids": torch.zeros(2, 3)},
            "labels of a batch as a tensor with one row per sample, got a NoneType in a dict",
        ),
        (
            {"input_ids": ["a", "b"], "labels": torch.zeros(2)},
            "tensors with a row for each of its 2 labels, got a list of 2",
        ),
        (
            {"pixels": torch.zeros(2, 3), "labels": torch.zeros(2)},
            "has pixels, but the forward of Reader takes input_ids",
        ),
    ],
)
def test_batches_that_cannot_be_used_are_refused_with_what_is_expected(batch, message):
    with pytest.raises(UserError, match=message):
        pair_of(batch, reader())


def test_who_passes_samples_is_not_told_of_loaders():
    with pytest.raises(UserError, match=r"but the forward of Reader takes .*: pass inputs as the net"):
        measure(reader(), {"pixels": torch.zeros(2, 3)}, torch.zeros(2, dtype=torch.long), LayerCushion())


class Short(Reader):
    """As nanoGPT: without targets it puts out the last token only."""

    def forward(self, idx, targets=None):
        logits = self.head(torch.tanh(self.inner(self.embedding(idx))))
        if targets is None:
            return logits[:, [-1], :], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_outputs_that_are_not_as_many_as_the_labels_are_refused_with_what_to_do():
    torch.manual_seed(0)
    net, tokens, targets = Short(), *torch.randint(CLASSES, (2, 4, 5))
    with pytest.raises(UserError, match=r"got outputs \(4, 1, 7\) and labels \(4, 5\): pass `loss`. If the net"):
        measure(net, tokens, targets, LayerCushion())
    found = measure(net, {"idx": tokens, "targets": targets}, targets, LayerCushion())
    assert found["probe/risk"] == pytest.approx(net(tokens, targets)[1].item(), rel=1e-6)
    with pytest.raises(UserError, match=r"got outputs \(4, 3\) and labels \(4, 1\)"):
        cross_entropy(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.long))


def test_a_net_that_returns_nothing_to_look_at_is_refused():
    with pytest.raises(UserError, match="one tensor of outputs, but Silent returns a str: let it return a tensor"):
        outputs_of("nothing", "Silent")


def test_labels_without_a_returned_loss_are_said_so():
    class Mute(Reader):
        def forward(self, input_ids, labels=None):
            return self.head(self.embedding(input_ids))

    batch = {name: texts()[name] for name in ("input_ids", "labels")}
    with pytest.raises(UserError, match=r"takes `labels`, .* but it returned none"):
        LayerCushion().evaluate(MeasureContext(Mute(), [batch]))
