"""The map T: the same function, the same bits off the ID entries, and exactly as much rounding as float allows."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_app.identity import id_entries, shortcut, transfer, untransfer
from lightning_app.networks import SimplifiedNet

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}


def net(seed: int = 0, **arguments) -> SimplifiedNet:
    torch.manual_seed(seed)
    return SimplifiedNet(**arguments)


def masks(some: SimplifiedNet) -> dict[str, torch.Tensor]:
    return {layer.weight_name: layer.id_mask() for layer in some.layers() if layer.has_id}


@given(
    outputs=st.integers(1, 6),
    inputs=st.integers(1, 6),
    rows=st.sampled_from([1, 3, 5]),
    columns=st.sampled_from([1, 3]),
)
def test_id_entries_are_the_centre_taps(outputs, inputs, rows, columns):
    mask = id_entries(torch.empty(outputs, inputs, rows, columns))
    expected = {(c, c, rows // 2, columns // 2) for c in range(min(outputs, inputs))}
    assert {tuple(place) for place in mask.nonzero().tolist()} == expected


@pytest.mark.parametrize("shape", [(2, 2, 2, 3), (2, 2, 3, 4), (2, 2), (8, 8, 3)])
def test_a_kernel_without_centre_tap_is_refused(shape):
    with pytest.raises(ValueError, match=r"defined for kernels \(D, C, U, V\) .*odd U and V, got .*without a skip"):
        id_entries(torch.empty(shape))


@given(
    channels=st.tuples(st.integers(1, 4), st.integers(1, 8)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    stride=st.integers(1, 3),
    window=st.sampled_from([1, 3, 5]),
)
def test_convolution_with_rho_is_the_shortcut_exactly(channels, size, stride, window):
    inputs, outputs = channels
    x = torch.randn(2, inputs, *size)
    rho = id_entries(torch.empty(outputs, inputs, window, window)).float()
    assert torch.equal(F.conv2d(x, rho, stride=stride, padding=window // 2), shortcut(x, outputs, stride))


def test_shortcut_subsamples_and_appends_channels_at_the_end():
    x = torch.arange(1.0, 17.0).view(1, 1, 4, 4)
    assert shortcut(x, 2, stride=2).tolist() == [[[[1.0, 3.0], [9.0, 11.0]], [[0.0, 0.0], [0.0, 0.0]]]]
    assert shortcut(x, 1) is x


@pytest.mark.parametrize("depth", [5, 8, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_residual_net_and_its_transfer_compute_the_same(depth, seed):
    some = net(seed, depth=depth, residual=True).double()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected, found = some(x), transfer(some)(x)
    assert expected.abs().max() > 0.01  # so that 1e-12 says something
    assert (found - expected).abs().max() <= 1e-12


@pytest.mark.parametrize("depth", [5, 8])
def test_a_plain_net_and_its_inverse_transfer_compute_the_same(depth):
    some = net(depth=depth, residual=False).double()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        expected, found = some(x), untransfer(some)(x)
    assert (found - expected).abs().max() <= 1e-12


def test_without_the_shift_the_functions_differ():
    some = net(depth=8, residual=True).double()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        assert (some.counterpart()(x) - some(x)).abs().max() > 1e-3


def test_gradients_agree():
    """T is a translation, so grad_p L = grad_r L: the first half of equivalent training."""
    some = net(depth=5, residual=True).double()
    twin, x = transfer(some), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    for each in (some, twin):
        F.cross_entropy(each(x), torch.tensor([0, 1, 2, 3])).backward()
    for a, b in zip(some.parameters(), twin.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_round_trip_is_exact_off_the_id_entries_and_rounds_once_on_them(dtype):
    some = net(depth=8, residual=True).to(dtype)
    with torch.no_grad():
        for name in some.id_weights():
            some.get_parameter(name).normal_(0, 0.01)  # in dtype: weights drawn in float32 have no low bits to lose
    back = untransfer(transfer(some)).state_dict()
    masked, state = masks(some), some.state_dict()
    rounded = 0
    for name, r in state.items():
        mask = masked.get(name, torch.zeros_like(r, dtype=torch.bool))
        assert torch.equal(r[~mask], back[name][~mask])
        error = (back[name] - r).abs()[mask]
        assert (error <= UNIT[dtype] * (1 + r.abs()[mask])).all()
        rounded += int((error > 0).sum())
    assert rounded  # the low bits of r are lost beside 1: the bound is not idle


# Sterbenz: p - 1 is exact for p in [1/2, 2], and adding 1 gives p back.
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=8))
def test_round_trip_from_a_plain_net_is_exact_where_sterbenz_holds(entries):
    p = torch.zeros(8, 8, 3, 3, dtype=torch.float64)
    p[range(len(entries)), range(len(entries)), 1, 1] = torch.tensor(entries, dtype=torch.float64)
    p[range(len(entries), 8), range(len(entries), 8), 1, 1] = 1.0
    there_and_back = transfer(untransfer({"w": p}, ["w"]), ["w"])["w"]
    assert torch.equal(there_and_back, p)


@given(st.floats(-4, 4), st.floats(-4, 4))
def test_affine(r, s):
    """T(r) - T(s) = r - s, up to the rounding of two additions."""
    kernels = [{"w": torch.full((1, 1, 1, 1), value, dtype=torch.float64)} for value in (r, s)]
    a, b = (transfer(kernel, ["w"])["w"].item() for kernel in kernels)
    assert a - b == pytest.approx(r - s, abs=2.0**-53 * (abs(r) + abs(s) + 2) + 2.0**-52 * abs(r - s))


@given(st.permutations(range(4)), st.permutations(range(4, 6)))
def test_commutes_with_a_permutation_that_input_and_output_channels_share(order, others):
    """Outputs 4 and 5 have no input; permuted outputs alone would take the ID entries away."""
    kernel = torch.arange(6.0 * 4 * 9).view(6, 4, 3, 3)
    shifted, both, outputs = (
        transfer({"w": each}, ["w"])["w"]
        for each in (kernel, kernel[[*order, *others]][:, order], kernel[[*order, *others]])
    )
    assert torch.equal(both, shifted[[*order, *others]][:, order])
    assert torch.equal(outputs, shifted[[*order, *others]]) == (order == sorted(order))


@pytest.mark.parametrize(("residual", "move"), [(True, transfer), (False, untransfer)])
def test_nets_and_state_dicts_agree_and_the_argument_is_untouched(residual, move):
    some = net(depth=8, residual=residual)
    before = copy.deepcopy(some.state_dict())
    twin, state = move(some), move(some.state_dict(), some.id_weights())
    assert twin.residual is not residual and some.residual is residual
    assert twin.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in twin.state_dict().items())
    with torch.no_grad():
        for tensor in (*twin.parameters(), *state.values()):
            tensor.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in some.state_dict().items())


def test_transfer_moves_the_sum_by_the_number_of_id_entries():
    some = net(depth=20, residual=True).double()
    moved = sum((a - b).sum() for a, b in zip(transfer(some).parameters(), some.parameters()))
    assert moved.item() == pytest.approx(624, abs=1e-9)


@pytest.mark.parametrize(("residual", "move", "expected"), [(False, transfer, "residual"), (True, untransfer, "plain")])
def test_the_wrong_kind_of_net_is_refused(residual, move, expected):
    with pytest.raises(ValueError, match=f"expects a {expected} net, got residual={residual}"):
        move(net(depth=5, residual=residual))


def test_a_net_that_knows_no_id_entries_is_refused():
    with pytest.raises(ValueError, match="Linear does not say which of its weights have ID entries"):
        transfer(nn.Linear(2, 2))


@pytest.mark.parametrize("names", [None, [], ["fc.wrong"]])
def test_a_state_dict_needs_names_it_has(names):
    with pytest.raises(ValueError, match=r"Use net\.id_weights\(\)"):
        transfer(net(depth=5).state_dict(), names)
