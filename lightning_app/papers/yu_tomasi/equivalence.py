"""Section 3 and the beginning of 4.1: simplified plain and residual nets compute the same, with the same gradients, under T."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_app.common.late import F, torch
from lightning_app.papers.parts import Artefact, Computation, seed_by_seed
from lightning_app.papers.predicates import below, tested
from lightning_app.papers.results import Results
from lightning_app.papers.verdicts import Claim, Class
from lightning_app.papers.yu_tomasi.nets import DEPTHS

IMAGES, DECAY = 8, 1e-4
ROUNDING = below(1e-12, each=True, note="rounding of float64 over the layers")


@seed_by_seed
def deviations(depth: int, images: int) -> dict[str, Any]:
    """Of one seed's nets, in float64 on random images: the largest difference over the largest number, of each pair.

    ``outputs`` of r and T(r); ``inverse`` of p and T^-1(p); of r and p = T(r) ``gradients`` of the risk, and ``costs`` with
    |r|^2 and |T^-1(p)|^2 and ``cost_gradients``.
    """
    from lightning_app.identity import id_entries, transfer, untransfer
    from lightning_app.networks import SimplifiedNet

    x, labels = torch.randn(images, 3, 32, 32, dtype=torch.float64), torch.randint(10, (images,))
    residual = SimplifiedNet(depth, residual=True).double()
    plain = SimplifiedNet(depth, residual=False).double()
    pairs = (residual, transfer(residual)), (plain, untransfer(plain))
    outputs, inverse = (_apart(*(net(x) for net in pair)) for pair in pairs)
    r, p = pairs[0]
    centre = {name: id_entries(p.get_parameter(name)).double() for name in p.id_weights()}  # rho
    risks = [F.cross_entropy(net(x), labels) for net in (r, p)]
    costs = [risks[0] + _penalty(r, {}), risks[1] + _penalty(p, centre)]
    return {
        "outputs": outputs,
        "inverse": inverse,
        "gradients": _gradients_apart(risks, (r, p)),
        "costs": _apart(*costs),
        "cost_gradients": _gradients_apart(costs, (r, p)),
    }


def _penalty(net: "torch.nn.Module", centre: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
    """Of weight decay towards a centre, 0 where none is given."""
    weights = net.named_parameters()
    squares = [(weight - centre[name] if name in centre else weight).square().sum() for name, weight in weights]
    return DECAY / 2 * torch.stack(squares).sum()


def _gradients_apart(numbers: "Sequence[torch.Tensor]", nets: "Sequence[torch.nn.Module]") -> float:
    """The largest over all parameters."""
    both = [torch.autograd.grad(one, [*net.parameters()], retain_graph=True) for one, net in zip(numbers, nets)]
    return max(_apart(*pair) for pair in zip(*both))


def _apart(one: "torch.Tensor", other: "torch.Tensor") -> float:
    return float((one - other).detach().abs().max() / one.detach().abs().max())


PIECES = {f"depth{depth}": {"depth": depth, "images": IMAGES, "seeds": 3} for depth in DEPTHS}
DEVIATIONS = Computation("deviations-under-T", deviations, PIECES)
SAID = {
    "outputs": ("r(x, r) against p(x, T(r))", "exactly equivalent"),
    "inverse": (
        "p(x, p) against r(x, T^-1(p))",
        "a plain network can be transformed to an equivalent residual network as well",
    ),
    "gradients": ("gradient of the risk with respect to p = T(r), against that to r", "the same"),
    "costs": ("cost with ‖r‖², against that with ‖T^-1(p)‖²", "both their costs [...] are equal"),
    "cost_gradients": ("gradients of these costs", "and the gradients of their cost are equal"),
}


def equivalence_claims(results: Results) -> list[Claim]:
    """ "The simplified plain and residual blocks are exactly equivalent to each other"; "the gradient of the training risk
    function with respect to p in p is the same as that with respect to r in r"; with |T^-1(p)|^2 as the penalty "both their costs
    and the gradients of their cost are equal to each other as well"."""
    return [
        tested(f"{words}, largest relative difference", said, ROUNDING, results.each(DEVIATIONS, key))
        for key, (words, said) in SAID.items()
    ]


EQUIVALENCE = Artefact(
    "equivalence",
    "T makes plain nets of residual ones that compute the same, with the same gradients",
    equivalence_claims,
    f"Untrained nets of depths {', '.join(map(str, DEPTHS))}, three seeds, float64, {IMAGES} random images: largest difference "
    "over the largest number. Nets and gradients are computed by PyTorch, T by this project. How far apart they come in "
    "training is table-2 and fig-6.",
    computations=(DEVIATIONS,),
    about=Class.FORMULA,
)
