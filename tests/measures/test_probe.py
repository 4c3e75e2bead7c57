"""One forward pass: the right numbers in every way a net is run, and no trace left in the net."""

import copy
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_app.common.errors import UserError
from lightning_app.measures import Hessian, LayerNorms, cushions, probe_forward
from lightning_app.measures.core.hooks import sample_norms
from lightning_app.networks import Layer, SimplifiedNet, layers_of
from tests.forked import Popen


def net(seed: int = 0, **arguments) -> SimplifiedNet:
    torch.manual_seed(seed)
    some = SimplifiedNet(**{"depth": 5, "width": 4} | arguments)
    for layer in some.layers():
        nn.init.normal_(layer.module.bias, std=0.1)
    return some


def data(count: int = 12, batch: int = 12, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(count, 3, 16, 16, generator=generator).to(dtype)
    return list(zip(images.split(batch), (torch.arange(count) % 10).split(batch)))


def assert_norms(found: dict[str, LayerNorms], expected: dict[str, LayerNorms], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].map_sizes == expected[name].map_sizes
        for field in ("input", "branch", "output"):
            torch.testing.assert_close(
                getattr(found[name], field),
                getattr(expected[name], field),
                rtol=tolerance,
                atol=0,
                msg=f"{name} {field}",
            )


@pytest.mark.parametrize("residual", [False, True])
@torch.no_grad()
def test_norms_loss_and_error_by_hand(residual):
    some = net(residual=residual).double()
    (images, labels), *_ = batches = data(dtype=torch.float64)
    found = probe_forward(some, some.layers(), batches)

    logits = some(images)
    assert found.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-14)
    assert found.error == pytest.approx((logits.argmax(1) != labels).double().mean().item())

    x = images
    for layer in some.layers():
        weight, norms = layer.weight, found.layers[layer.name]
        if not layer.is_conv:
            x = x.mean((2, 3))
            branch = whole = x @ weight.T
        else:
            branch = whole = F.conv2d(x, weight, stride=layer.stride, padding=1)
            if layer.skip:
                whole = branch.clone()
                whole[:, : x.shape[1]] += x[:, :, :: layer.stride, :: layer.stride]
        assert {*norms.map_sizes} == {tuple(x.shape[2:])}
        for value, of in ((norms.input, x), (norms.branch, branch), (norms.output, whole)):
            torch.testing.assert_close(value, of.flatten(1).norm(dim=1), rtol=1e-13, atol=0)
        x = (whole + layer.module.bias[:, None, None]).relu() if layer.is_conv else x


def test_norms_are_summed_in_float64():
    """In either layout: a float32 sum of these 16 384 squares is guaranteed to 1e-3 only."""
    x = torch.rand(3, 16, 32, 32, generator=torch.Generator().manual_seed(0)) + 0.5
    exact = x.double().square().sum((1, 2, 3)).sqrt()
    for layout in (x, x.to(memory_format=torch.channels_last)):
        torch.testing.assert_close(sample_norms(layout), exact, rtol=1e-13, atol=0)


@pytest.mark.parametrize("batch", [1, 5, 6])
def test_batches_do_not_matter(batch):
    some = net().double()
    whole = probe_forward(some, some.layers(), data(dtype=torch.float64))
    parts = probe_forward(some, some.layers(), iter(data(batch=batch, dtype=torch.float64)))
    assert parts.error == whole.error
    assert parts.loss == pytest.approx(whole.loss, rel=1e-14)  # weighted by size, though 5 + 5 + 2
    assert_norms(parts.layers, whole.layers, 1e-13)


@pytest.mark.parametrize("residual", [False, True])
def test_channels_last(residual):
    some = net(residual=residual).double()
    expected = probe_forward(some, some.layers(), data(dtype=torch.float64))
    last = [(images.to(memory_format=torch.channels_last), labels) for images, labels in data(dtype=torch.float64)]
    some.to(memory_format=torch.channels_last)
    assert_norms(probe_forward(some, some.layers(), last).layers, expected.layers, 1e-13)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 0.005)])
def test_half_precision_is_widened(dtype, tolerance):
    some = net().double()
    expected = probe_forward(some, some.layers(), data(dtype=torch.float64))
    found = probe_forward(some.to(dtype), some.layers(), data(dtype=dtype))
    assert_norms(found.layers, expected.layers, tolerance)
    assert found.loss == pytest.approx(expected.loss, rel=tolerance)


def test_large_half_precision_activations_do_not_overflow():
    conv = nn.Conv2d(1, 1, 1).half()
    nn.init.ones_(conv.weight)
    some = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.full((1, 1, 16, 16), 1000.0, dtype=torch.float16)  # its square is infinite in float16
    nn.init.zeros_(conv.bias)
    norms = probe_forward(some, layers_of(some), [(images, torch.zeros(1, dtype=torch.long))]).layers["layer01"]
    assert norms.branch.item() == 16_000.0


class Attention(nn.Module):
    """A layer on (B, T, C), a layer never called, and a bias-free one."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Linear(6, 5)
        self.unused = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.token(x).relu().mean(1))


def test_linear_maps_on_sequences_and_layers_that_are_never_called():
    torch.manual_seed(0)
    some = Attention()
    x = torch.randn(4, 7, 6)
    found = probe_forward(some, layers_of(some), [(x, torch.zeros(4, dtype=torch.long))])
    assert {name: norms.map_sizes[0] for name, norms in found.layers.items()} == {"layer01": (7,), "layer03": ()}
    expected = (x @ some.token.weight.T).flatten(1).norm(dim=1).double()
    torch.testing.assert_close(found.layers["layer01"].branch, expected, rtol=1e-6, atol=0)
    assert list(cushions(layers_of(some), found.layers)) == ["layer01", "layer03"]


@pytest.mark.parametrize("outputs", [2, 3, 4])
@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
def test_a_linear_layer_with_a_skip(outputs, places):
    linear = nn.Linear(3, outputs)
    x = torch.randn(5, *places, 3)
    layers = (Layer("layer01", linear, "weight", skip=True),)
    labels = torch.zeros(5, *places, dtype=torch.long)
    norms = probe_forward(linear, layers, [(x, labels)], loss=lambda outputs, _: outputs.mean()).layers["layer01"]
    whole = linear.weight + torch.eye(outputs, 3)
    torch.testing.assert_close(norms.output, (x @ whole.T).flatten(1).norm(dim=1).double(), rtol=1e-6, atol=0)
    found = cushions(layers, {"layer01": norms})["layer01"]
    expected = (x @ whole.T).flatten(1).norm(dim=1) / whole.norm() / x.flatten(1).norm(dim=1)
    torch.testing.assert_close(found.samples_transferred, expected.detach())


def test_a_skip_that_cannot_be_written_is_refused():
    conv = nn.Sequential(nn.Conv1d(4, 4, 3, stride=2, padding=1), nn.Flatten())
    layers = (Layer("layer01", conv[0], "0.weight", skip=True),)
    with pytest.raises(UserError, match=r"of 2-d convolutions with odd U and V, got \(4, 4, 3\): describe the layer"):
        probe_forward(conv, layers, [(torch.randn(2, 4, 9), torch.tensor([0, 1]))])


class Experts(nn.Module):
    """A gate sends samples to one of two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.last = nn.ModuleList(nn.Linear(2, 2) for _ in range(2)), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mine = x[:, 0].gt(0) == bool(number)
            out[mine] = expert(x[mine])
        return self.last(x + out)


def test_a_layer_of_some_samples_has_no_norms_and_leaves_the_others_theirs():
    torch.manual_seed(0)
    some, x = Experts(), torch.tensor([[1.0, 2.0], [3.0, 4.0], [-1.0, 0.0], [-2.0, 1.0], [5.0, 0.0]])
    found = probe_forward(some, layers_of(some), [(x[:3], torch.tensor([0, 1, 2])), (x[3:], torch.tensor([0, 1]))])
    assert found.layers["layer02"].input.isnan().tolist() == [True, True, True, False, False]  # one row stands for all
    assert cushions(layers_of(some), found.layers)["layer03"].samples.isfinite().all()


@pytest.mark.parametrize(
    ("layers", "batches", "said"),
    [
        (net().layers(), data(), "layer01 is not a layer of this SimplifiedNet"),
        ((), [], "at least one batch"),
    ],
)
def test_refusals(layers, batches, said):
    with pytest.raises(ValueError, match=said):
        probe_forward(net(), layers, batches)


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
def test_compiled_equals_eager_and_is_compiled_once(fresh_compiler):
    some = net()
    batches = data(count=16, batch=6)  # 6 + 6 + 4: the remainder runs uncompiled
    expected = probe_forward(some, some.layers(), batches)
    found = probe_forward(some, some.layers(), batches, compile=True)
    assert_norms(found.layers, expected.layers, 2e-6)
    assert found.loss == pytest.approx(expected.loss, rel=1e-6) and found.error == expected.error

    other = net(seed=1)
    expected = probe_forward(other, other.layers(), batches)
    in_place = copy.deepcopy(other)
    in_place.compile()
    wrapped = torch.compile(copy.deepcopy(other))
    with torch.compiler.set_stance("fail_on_recompile"):
        probe_forward(some, some.layers(), batches, compile=True)
        for each in (other, in_place, wrapped):
            found = probe_forward(each, layers_of(each), batches, compile=True)
            assert_norms(found.layers, expected.layers, 2e-6)


def test_a_risk_of_a_sum_is_no_number_also_behind_a_batch_of_one():
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    pairs = [(x[:1], y[:1]), (x[1:], y[1:])]
    risks = [
        probe_forward(nn.Linear(3, 2), (), pairs, loss=nn.MSELoss(reduction=name)).loss for name in ("sum", "mean")
    ]
    assert [math.isnan(risk) for risk in risks] == [True, False]


MEMORY = """
from pathlib import Path
import torch
from lightning_app.measures import probe_forward
from lightning_app.networks import SimplifiedNet

def peak(batches):
    probe_forward(net, net.layers(), [(images, labels)] * batches)
    status = Path("/proc/self/status").read_text()  # getrusage has the peak of the process that started this one
    return status.partition("VmHWM:")[2].split()[0]

torch.set_num_threads(1)
net, images, labels = SimplifiedNet(20), torch.randn(50, 3, 32, 32), torch.zeros(50, dtype=torch.long)
print(peak(2), peak(14))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are counted in KiB on Linux")
def test_memory_does_not_grow_with_the_images():
    """What is kept of a batch must not lie scattered where its maps were: that was 50 MB a batch."""
    with Popen([sys.executable, "-c", MEMORY], stdout=subprocess.PIPE, text=True) as process:
        few, many = map(int, process.communicate()[0].split())
    assert many - few < 300 * 1024


def test_batches_of_sequences_may_differ_in_length():
    """Each sample's operator norm is that of its own map, and the order of the batches does not matter."""
    torch.manual_seed(0)
    some = Attention().double()
    short, long = ((torch.randn(2, length, 6).double(), torch.tensor([0, 1])) for length in (3, 9))

    def token(*batches):
        layers = layers_of(some)
        return cushions(layers, probe_forward(some, layers, batches).layers)["layer01"]

    found = [token(short, long), token(long, short)]
    of_kernel = torch.cat(
        [each.samples * each.kernel_norm / each.operator_norm for each in (token(short), token(long))]
    )
    assert [one.median_operator for one in found] == [pytest.approx(float(of_kernel.quantile(0.5)))] * 2
    assert all(math.isnan(one.operator_norm) and one.kernel_norm == token(short).kernel_norm for one in found)


def test_a_loss_of_tokens_is_tried_on_batches_of_different_lengths():
    """The first batch is of one class, so that the loss is tried once more on one that is not, and can be joined with it."""
    torch.manual_seed(0)
    some = nn.Linear(2, 3)

    def batch(length, first):
        return torch.randn(2, length, 2), torch.full((2, length), first)

    def weighted(outputs, labels):
        return F.cross_entropy(outputs.movedim(-1, 1), labels, torch.tensor([1.0, 2.0, 5.0]))

    for loss, expected in (
        (lambda outputs, labels: F.cross_entropy(outputs.movedim(-1, 1), labels), False),
        (weighted, True),
    ):
        found = probe_forward(some, (), [batch(3, 0), batch(5, 1), batch(3, 1)], loss=loss)
        assert math.isnan(found.loss) == expected


def of_neighbours(outputs: Tensor, labels: Tensor) -> Tensor:
    """As contrastive losses are: which other sample is the most similar? NaN for one sample alone."""
    similar = (outputs @ outputs.T).fill_diagonal_(-math.inf)
    return F.cross_entropy(similar, torch.arange(len(outputs)).roll(1))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(torch.tensor([0.0, 1.0, 1.0])), of_neighbours])
def test_a_loss_that_is_nan_for_a_sample_alone_is_no_mean(loss):
    torch.manual_seed(0)
    some, x, y = nn.Linear(4, 3), torch.randn(16, 4), torch.arange(16) % 3
    assert math.isnan(probe_forward(some, (), [(x[:10], y[:10]), (x[10:], y[10:])], loss=loss).loss)
    with pytest.raises(UserError, match=r"the mean of their separate losses is nan"):
        Hessian(some, [(x, y)], loss)


def test_a_loss_that_the_first_batch_tells_to_be_no_mean_stays_none():
    """The first batch is of one class; the weights of classes 0 to 3, on which the loss would be tried again, are equal."""
    torch.manual_seed(0)
    weighted = nn.CrossEntropyLoss(torch.tensor([1.0] * 5 + [50.0] * 5))
    batches = [(torch.randn(8, 2), torch.full((8,), number)) for number in (0, 1, 7)]
    assert math.isnan(probe_forward(nn.Linear(2, 10), (), batches, loss=weighted).loss)
