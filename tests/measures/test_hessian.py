"""Products with the Hessian against closed forms, torch.func.hessian and curvlinops."""

import copy
import gc

import curvlinops
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from lightning_app.common.errors import UserError
from lightning_app.common.isolation import ran_out_of_memory
from lightning_app.measures import Hessian, Restricted, dense
from lightning_app.networks import SimplifiedNet


def images(count: int = 6, size: int = 8, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, size, size, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 10, (count,), generator=generator)


def conv_net() -> nn.Module:
    """Convolutions, BatchNorm, pooling, a smooth and a kinked activation: 311 parameters."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(3, 10),
    )
    net(torch.randn(16, 3, 8, 8))  # running statistics that are not the initial ones
    return net.double().eval()


def by_torch(net: nn.Module, x: torch.Tensor, y: torch.Tensor, loss=F.cross_entropy) -> torch.Tensor:
    """The slow witness: torch.func.hessian of the flattened parameters."""
    names, weights = zip(*((name, w.detach()) for name, w in net.named_parameters()))
    sizes = [w.numel() for w in weights]

    def of_flat(flat):
        parts = {name: p.view_as(w) for name, p, w in zip(names, flat.split(sizes), weights)}
        return loss(torch.func.functional_call(net, parts, (x,)), y)

    return torch.func.hessian(of_flat)(torch.cat([w.flatten() for w in weights]))


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max())


def test_nothing_of_a_net_is_kept_alive():
    """Not even until the garbage collector comes: its nodes would stay on the stream they were made on, and 1 MB each time."""
    net, (x, y) = conv_net(), images()
    gc.disable()
    try:
        hessian = Hessian(net, [(x, y)])
        hessian @ torch.ones(hessian.size, dtype=torch.float64)
        for weight in net.parameters():
            get_gradient_edge(weight).node.metadata["used"] = True
        del hessian
        assert not [name for name, w in net.named_parameters() if "used" in get_gradient_edge(w).node.metadata]
    finally:
        gc.enable()


def test_logistic_regression():
    """Cross-entropy of a linear map: mean of (diag(p) - p p^T) (x) x x^T."""
    torch.manual_seed(0)
    x, y, net = torch.randn(20, 4).double(), torch.randint(0, 3, (20,)), nn.Linear(4, 3, bias=False).double()
    p = net(x).detach().softmax(1)
    curved = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("mij,mk,ml->ikjl", curved, x, x).reshape(12, 12) / 20
    assert largest_difference(dense(Hessian(net, [(x, y)])), expected) < 1e-12


@pytest.mark.parametrize(
    "net", [conv_net(), SimplifiedNet(5, width=1).double(), SimplifiedNet(5, False, width=1).double()]
)
def test_small_nets_against_torch(net):
    x, y = images(size=8)
    assert largest_difference(dense(Hessian(net, [(x, y)])), by_torch(net, x, y)) < 1e-10


def test_against_curvlinops():
    net, (x, y) = conv_net(), images()
    hessian = Hessian(net, [(x, y)])
    vector = torch.randn(hessian.size, generator=torch.Generator().manual_seed(2)).double()
    weights = [w for w in net.parameters() if w.requires_grad]
    theirs = curvlinops.HessianLinearOperator(net, nn.CrossEntropyLoss(), weights, [(x, y)]) @ vector
    assert largest_difference(hessian @ vector, theirs) < 1e-10


def test_graphs_that_do_not_fit_are_made_anew(monkeypatch):
    monkeypatch.setattr("lightning_app.measures.curvature.hessian.CHUNK", 64 * 3 * 8 * 8)
    net, (x, y) = conv_net(), images(150)
    kept, anew = Hessian(net, [(x, y)]), Hessian(net, [(x, y)], memory=0)
    vector = torch.ones(kept.size).double()
    assert len(kept._graphs) == 3 and not anew._graphs
    assert len(Hessian(net, [(x[:0], y[:0]), (x[:1], y[:1]), (x[1:], y[1:])])._graphs) == 4  # nothing of an empty batch
    assert torch.equal(kept @ vector, anew @ vector)
    assert torch.equal(anew @ vector, anew @ vector)


def test_blocks_are_parts_of_the_whole():
    net, pairs = conv_net(), [images()]
    whole = Hessian(net, pairs)
    matrix, where = dense(whole), whole.slices()
    block = dense(Hessian(net, pairs, names=["4.weight", "4.bias"]))
    inside = torch.cat([torch.arange(where[name].start, where[name].stop) for name in ("4.weight", "4.bias")])
    assert largest_difference(block, matrix[inside][:, inside]) < 1e-12
    mask = torch.zeros(whole.size, dtype=torch.bool)
    mask[inside[::3]] = True
    part = Restricted(whole, mask)
    columns = torch.stack([part @ unit for unit in torch.eye(part.size).double()])
    assert largest_difference(columns, matrix[mask][:, mask]) < 1e-12


def test_attention():
    """Fused attention has no second derivative; the plain one is asked for."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 3)

        def forward(self, x):
            q, k, v = self.qkv(x)[:, None].chunk(3, -1)
            return self.out(F.scaled_dot_product_attention(q, k, v)[:, 0].mean(1))

    torch.manual_seed(0)
    net, x, y = Attends().double(), torch.randn(5, 6, 4).double(), torch.tensor([0, 1, 2, 0, 1])
    with sdpa_kernel(SDPBackend.MATH):
        expected = by_torch(net, x, y)
    assert largest_difference(dense(Hessian(net, [(x, y)])), expected) < 1e-10


def test_relu_at_exactly_zero_weights():
    """PyTorch's relu'(0) = 0: behind a ReLU the Hessian at zero weights is zero, not its limit from small weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False)).double()
    x, y = torch.randn(9, 4).double(), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0])
    for weight in net.parameters():
        weight.data.zero_()
    assert dense(Hessian(net, [(x, y)])).abs().max() == 0
    for weight in net.parameters():
        weight.data.normal_(std=1e-6)
    assert dense(Hessian(net, [(x, y)])).abs().max() > 0.01


def test_a_risk_without_curvature():
    net = nn.Linear(4, 1, bias=False).double()
    hessian = Hessian(net, [(torch.ones(2, 4).double(), torch.zeros(2))], lambda out, y: out.mean())
    assert torch.equal(hessian @ torch.ones(4).double(), torch.zeros(4).double())


def central_difference(net: nn.Module, x: torch.Tensor, y: torch.Tensor, vector: torch.Tensor, step: float):
    """(g(w + step v) - g(w - step v)) / (2 step) of the cross-entropy's gradient g."""
    weights = list(net.parameters())

    def gradient_at(side: float) -> torch.Tensor:
        moved = [w.detach() + side * step * part.view_as(w) for w, part in zip(weights, vector.split(sizes))]
        moved = [w.requires_grad_() for w in moved]
        risk = F.cross_entropy(torch.func.functional_call(net, dict(zip(names, moved)), (x,)), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(risk, moved)])

    sizes, names = [w.numel() for w in weights], [name for name, _ in net.named_parameters()]
    return (gradient_at(1) - gradient_at(-1)) / (2 * step)


def test_layer_norm_against_finite_differences():
    """Not against torch.func.hessian, which nests forward in reverse mode and is wrong for LayerNorm."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(9, 6).double(), torch.arange(9) % 3
    hessian = Hessian(net, [(x, y)])
    vector = torch.randn(hessian.size).double()
    assert largest_difference(hessian @ vector, central_difference(net, x, y, vector, 1e-6)) < 1e-7


def one_minus_p(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross-entropy as log(1 + sum_k exp(f_k - f_y)): exact where 1 - p is far below the rounding of 1."""
    others = (outputs - outputs.gather(1, labels[:, None])).scatter(1, labels[:, None], -torch.inf)
    return torch.log1p(others.exp().sum(1)).mean()


def learned(margin: float) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """A float32 net with outputs near margin * one-hot, its three samples, and its exact Hessian."""
    torch.manual_seed(0)
    net, x, y = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.eye(3, 4), torch.tensor([0, 1, 2])
    with torch.no_grad():
        net[2].weight.copy_(torch.linalg.lstsq(net[:2](x), margin * torch.eye(3)).solution.T)
        net[2].bias.zero_()
    return net, [(x, y)], dense(Hessian(copy.deepcopy(net).double(), [(x.double(), y)], one_minus_p))


@pytest.mark.parametrize("margin", [9, 20, 23])  # mean loss 4e-4, 6e-9 and 3e-10
def test_float32_knows_the_hessian_of_a_net_that_has_learned_its_samples(margin):
    net, pairs, exact = learned(margin)
    found = dense(Hessian(net, pairs)).double()
    assert float(torch.linalg.matrix_norm(found - exact, 2) / torch.linalg.matrix_norm(exact, 2)) < 3e-6


@pytest.mark.parametrize("margin", [10, 12, 14])  # mean loss 9e-5, 1e-5 and 2e-6
def test_rounding_behind_a_log_softmax_is_not_taken_for_a_wrong_derivative(margin):
    net, pairs, exact = learned(margin)
    found = dense(Hessian(nn.Sequential(net, nn.LogSoftmax(1)), pairs, F.nll_loss)).double()
    assert float(torch.linalg.matrix_norm(found - exact, 2) / torch.linalg.matrix_norm(exact, 2)) < 1e-2


def test_products_that_rounding_has_destroyed_are_refused_and_right_in_float64():
    net, pairs, exact = learned(20)  # mean loss 4e-9
    net = nn.Sequential(net, nn.LogSoftmax(1))
    with pytest.raises(UserError, match=r"lost in the rounding of float32.*Set double"):
        Hessian(net, pairs, F.nll_loss)
    torch.testing.assert_close(dense(Hessian(net, pairs, F.nll_loss, double=True)), exact, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError(), RuntimeError("can't allocate memory"), RuntimeError("float32 only"), ValueError()],
)
def test_a_loss_that_refuses_float64_is_taken_in_float32_and_memory_that_ran_out_is_no_refusal(error):
    def loss(outputs, labels):
        if outputs.dtype == torch.float64:
            raise error
        return F.cross_entropy(outputs, labels)

    net, pairs = nn.Linear(4, 3), [(torch.randn(6, 4), torch.arange(6) % 3)]
    if ran_out_of_memory(error):
        with pytest.raises(type(error)):
            Hessian(net, pairs, loss)
    else:
        torch.testing.assert_close(dense(Hessian(net, pairs, loss)), dense(Hessian(net, pairs)))


def test_a_loss_with_float32_numbers_of_its_own_also_on_a_float64_net():
    mixing = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.5, 0.0, 1.0]])
    net, pairs = nn.Linear(4, 3), [(torch.randn(6, 4), torch.arange(6) % 3)]
    exact = dense(Hessian(net, pairs, lambda outputs, labels: F.cross_entropy(outputs @ mixing, labels)))
    double = dense(Hessian(net, pairs, lambda outputs, labels: F.cross_entropy(outputs @ mixing, labels), double=True))
    torch.testing.assert_close(double.float(), exact, rtol=1e-4, atol=1e-6)


def test_a_copy_in_float64_is_refused_where_the_loss_uses_the_net_itself():
    net, pairs = nn.Linear(4, 3), [(torch.randn(6, 4), torch.arange(6) % 3)]
    factor = nn.Parameter(torch.ones(()))

    def penalised(outputs, labels):
        return F.cross_entropy(outputs, labels) + net.weight.square().sum()

    with pytest.raises(UserError, match=r"but the loss uses weights of the net itself, .* set double to false"):
        Hessian(net, pairs, penalised, double=True)
    without = dense(Hessian(net, pairs))[:12, :12]
    torch.testing.assert_close(dense(Hessian(net, pairs, penalised))[:12, :12], without + 2 * torch.eye(12))
    Hessian(net, pairs, lambda outputs, labels: factor * F.cross_entropy(outputs, labels), double=True)
    Hessian(net, pairs, lambda outputs, labels: F.cross_entropy(outputs, labels) + 0 * net.weight.sum(), double=True)


def test_a_batchnorm_without_running_statistics_is_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)).eval()
    with pytest.raises(
        UserError, match="other samples of the batch, but a BatchNorm of this net has no running statistics"
    ):
        Hessian(net, [(torch.randn(6, 4), torch.arange(6) % 3)])


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2


class OnceNet(nn.Linear):
    def forward(self, x):
        return Once.apply(super().forward(x))


class Drawing(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.randn(len(x), 2)


def weight_normed() -> nn.Module:
    """torch's weight_norm has a wrong second derivative: gradgradcheck fails."""
    torch.manual_seed(0)
    inner = nn.utils.parametrizations.weight_norm(nn.Linear(192, 4))
    return nn.Sequential(nn.Flatten(), inner, nn.Tanh(), nn.Linear(4, 10)).double()


TWO = [(torch.ones(3, 2), torch.tensor([0, 1, 0]))]
NOT_SYMMETRIC = "is symmetric, but autograd's second derivative of Sequential is not"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Hessian(conv_net().bfloat16(), [images(dtype=torch.bfloat16)]), "float32 or float64"),
        (
            lambda: Hessian(nn.Linear(2, 2, dtype=torch.cfloat), TWO),
            "needs real parameters, but weight is torch.complex64",
        ),
        (lambda: Hessian(conv_net(), []), "at least one sample"),
        (lambda: Hessian(conv_net(), [images()], names=["0.weights"]), "'0.weights' is not a trainable parameter"),
        (lambda: Hessian(conv_net().requires_grad_(False), [images()]), "no trainable parameters"),
        (lambda: dense(Hessian(OnceNet(2, 2), TWO)), "differentiated twice"),
        (lambda: Hessian(conv_net().train(), [images()]), "'1' is in training mode"),
        (lambda: Hessian(nn.Sequential(conv_net(), nn.Dropout()).train(), [images()]), "is in training mode"),
        (
            lambda: Hessian(conv_net(), [images()], nn.CrossEntropyLoss(reduction="sum")),
            "an unweighted mean over samples",
        ),
        (lambda: Hessian(Drawing(2, 2), TWO), "draws random numbers in evaluation mode"),
        (lambda: Hessian(weight_normed(), [images()]), NOT_SYMMETRIC),
        (lambda: Hessian(weight_normed().float(), [images(dtype=torch.float32)]), NOT_SYMMETRIC),
        (lambda: Restricted(Hessian(conv_net(), [images()]), torch.zeros(9, dtype=torch.bool)), "at least one coord"),
    ],
)
def test_refusals(make, said):
    with pytest.raises(UserError, match=said):
        make()


@pytest.mark.parametrize("batch", [16, 1])
def test_weights_of_classes_show_where_the_first_samples_are_of_one_class(batch):
    torch.manual_seed(0)
    pairs = [*zip(torch.randn(16, 2).split(batch), torch.arange(2).repeat_interleave(8).split(batch))]
    with pytest.raises(UserError, match="an unweighted mean over samples"):
        Hessian(nn.Linear(2, 2), pairs, nn.CrossEntropyLoss(torch.tensor([1.0, 3.0])))
