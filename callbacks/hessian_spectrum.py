"""Curvature: the spectrum of the Hessian of the risk on fixed probe samples, after epochs."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn
from typing_extensions import override

from callbacks.context import MeasureContext
from callbacks.measure import Measure
from lightning_app.common.errors import DivergedError, UserError, at_least
from lightning_app.common.isolation import is_of_device, trained_weights
from lightning_app.measures import Hessian, Restricted, Spectrum, check_asked, dense, exact_spectrum, spectrum
from lightning_app.measures.curvature.hessian import LossOfOwnWeights
from lightning_app.networks import layers_of

if TYPE_CHECKING:
    from lightning_app.measures.curvature.gauss_newton import GaussNewton

log = logging.getLogger(__name__)

Matrix = Literal["hessian", "gauss_newton", "empirical_fisher"]


class HessianSpectrum(Measure):
    """Logs the spectrum of the Hessian of the mean loss on probe samples: its ends, trace, norm, density, index and
    condition.

    Definition:
        H is the second derivative of the mean loss, without penalty, in all trained parameters; BatchNorm uses running
        statistics. The loss is the module's ``loss(outputs, labels)``, else cross-entropy. Eigenvalues come from a few dozen
        products H v (Lanczos), each with a bound. Averages over the spectrum come from random starts, with standard errors.

    Keys:
        | key | unit | meaning |
        |---|---|---|
        | ``hessian/chunk`` | samples | differentiated at once, at most: as many as fit into fixed memory |
        | ``hessian/[<part>/]<field>`` | loss | fields of `Spectrum`; shares, counts and conditions are without unit |
        | ``hessian/[<part>/]top<i>`` | loss | i-th largest eigenvalue |
        | ``hessian/[<part>/]top<i>_residual`` | loss | an eigenvalue lies within this distance of it |
        | ``hessian/[<part>/]bottom<i>`` | loss | i-th smallest eigenvalue, the most negative first |
        | ``hessian/[<part>/]bottom<i>_residual`` | loss | an eigenvalue lies within this distance of it |
        | ``hessian/id/leading`` | share | of the leading eigenvector's square that lies on ID entries |
        | ``hessian/leading`` | share | the same by layer: array (layers,); of a shared weight at its first one |
        | ``cost/hessian`` | s | what measuring all nets took |

        With ``parts``, ``<part>`` is ``layer07`` (the diagonal block of a layer's weight and bias, without BatchNorm), ``id``
        (the block of the ID entries) or ``rest`` (of all others). The option ``prefix`` replaces "hessian".

    Interpretation:
        ``top1`` limits stable learning rates (2 / top1 for gradient descent on a quadratic); a negative ``bottom1`` is a
        direction of descent. Depth 20 after 10 epochs of CIFAR-10, plain against residual: largest 78.2 and 96.7, smallest -2.7
        and -3.3, trace 671 ± 57 and 833 ± 57: the residual net, which is ahead in training, has the larger curvature. Around
        zero weights nets with shortcuts over two layers have index ½ and a condition number that does not grow with depth
        (Theorem 2; 1.006 from depth 2 to 32).

    Cost:
        A product H v costs about two gradients of the probe samples; the defaults take a few percent of an epoch of CIFAR-10.
        With ``parts`` each part costs as many products again. Memory does not grow with the samples, which are differentiated
        ``chunk`` at a time; in addition there are ``steps`` vectors as large as the net, 0.4 GB each for 100 million
        parameters. Without ``probes`` both are up to half as much again once eigenvalues have converged, as a second run checks
        whether they are multiple (15 to 18 products instead of 12, 54 to 59 instead of 40, for depth 8).

    Breaks:
        * Most eigenvalues of a trained net are so close to 0 that a few products do not show their sign: ``index_low`` and
          ``index_high`` are an interval (0.01 to 0.99 for depth 20, 40 products), and ``unresolved`` is the undecided share.
        * If ``unconverged`` is above 0, some ends are unreliable; use more ``steps``.
        * One start finds one copy of a multiple eigenvalue: ends are right up to multiplicity. Trace, norm and density count
          all copies, from a random start. With a readout of zeros, where each eigenvalue appears once for every class but one,
          their errors are large; ``probes`` reduce them.
        * It is the Hessian for these samples: other samples, BatchNorm or dropout in training mode, or a penalty would give
          another. Losses that are not a mean over the batch are refused.
        * Before training BatchNorm has mean 0 and variance 1. If H v is not finite, nothing is logged, with a warning.

    Source:
        Li et al. (2016), sections 4.2 and 5, appendix B for the 10th percentile; Lanczos quadrature as in Ghorbani et
        al. (2019), found eigenpairs apart as in Hutch++ (Meyer et al. 2021).

    When it measures: ``every_n_epochs`` (1; the last epoch always), ``at_start`` (True: before the first step) and
    ``every_n_steps`` (None; a number of steps, or "powers_of_2"), the arguments of `EpochCallback`.

    Args:
        samples: number of probe samples, evenly spread over the probe; all if it has fewer.
        k: number of eigenvalues at either end, at least 1.
        steps: number of products of the run that finds the ends, at least 3.
        probes: number of further runs that sample density, trace and norm of the rest of the spectrum; 0: the first run is used
            for both, or a second run of half as many steps if found eigenvalues may be multiple.
        probe_steps: number of products of each of these, at least 3.
        tolerance: above 0 and below 1; an eigenpair has converged when its residual is at most tolerance · |eigenvalue|.
        parts: also the spectra of each layer, of the ID entries and of the rest; each costs as many products as the whole.
        exact: nets with at most this many parameters get all eigenvalues, in float64, unless the net cannot compute in it (one
            that casts its inputs to float32), or the loss uses the net's weights itself.
        double: compute in float64; otherwise in the precision of the weights, float32 or float64.
        seed: seed of the random starts.
        prefix: prefix of the keys, so that a small spectrum every epoch and a full one now and then have different keys.
        matrix: "hessian", "gauss_newton" or "empirical_fisher". The last two need a cross-entropy and the package curvlinops,
            and have no ``parts`` and no ``exact``. Unless ``prefix`` is set, it is then this name.

    Raises:
        UserError: for an argument outside its range.
    """

    family = "hessian"

    def __init__(
        self,
        samples: int = 128,
        k: int = 2,
        steps: int = 12,
        probes: int = 0,
        probe_steps: int = 20,
        tolerance: float = 1e-3,
        parts: bool = False,
        exact: int = 1000,
        double: bool = False,
        seed: int = 0,
        prefix: str = "hessian",
        matrix: Matrix = "hessian",
        **clock: Any,
    ) -> None:
        super().__init__(**clock)
        check_asked("HessianSpectrum", k, steps, probes, probe_steps, tolerance)
        self.samples = at_least(1, "HessianSpectrum", samples=samples)
        self.options: dict[str, Any] = {"k": k, "steps": steps, "probes": probes, "probe_steps": probe_steps}
        self.options |= {"tolerance": tolerance, "seed": seed}
        self.parts = parts
        self.exact = at_least(0, "HessianSpectrum", exact=exact)
        self.double = double
        if matrix not in get_args(Matrix):
            raise UserError(f"matrix of HessianSpectrum must be one of {', '.join(get_args(Matrix))}, got '{matrix}'.")
        if parts and matrix != "hessian":
            raise UserError(f"parts of HessianSpectrum need the matrix 'hessian', got '{matrix}': set parts to false.")
        self.matrix = matrix
        self.prefix = self.family = matrix if prefix == "hessian" else prefix

    @override
    def measure(self, context: MeasureContext) -> Mapping[str, Any]:
        try:
            return self._spectra(context)
        except DivergedError as error:  # whoever trains the net decides what follows
            log.warning(f"epoch {context.epoch}: HessianSpectrum logs nothing under {self.prefix}/: {error}")
            return {}

    def _spectra(self, context: MeasureContext) -> dict[str, Any]:
        net, samples = context.net, context.samples(self.samples)
        if self.matrix != "hessian":
            from lightning_app.measures.curvature.gauss_newton import GaussNewton

            operator = GaussNewton(net, samples, self.matrix, context.loss, self.double)
            return _whole(self.prefix, net, operator, *spectrum(operator, **self.options))
        few = sum(map(Tensor.numel, trained_weights(net).values())) <= self.exact
        hessian_of = partial(Hessian, net, samples, context.loss, memory=context.graph_memory)
        if few and (in_float64 := _in_float64(hessian_of)) is not None:
            return self._exactly(net, in_float64)
        hessian = hessian_of(double=self.double)
        results = _whole(self.prefix, net, hessian, *spectrum(hessian, **self.options))
        for name, mask in _id_and_rest(net, hessian).items() if self.parts else ():
            results |= _flat(f"{self.prefix}/{name}", spectrum(Restricted(hessian, mask), **self.options)[0])
        whole = hessian.slices()
        for name, slices in _layers(net, hessian).items() if self.parts else ():
            if not slices:
                continue
            packed = any(where != whole[of] for of, where in slices.items())
            masked = Restricted(hessian, _mask(hessian, slices.values())) if packed else None
            block = masked or hessian_of(names=[*slices], double=self.double)
            results |= _flat(f"{self.prefix}/{name}", spectrum(block, **self.options)[0])
        return results

    def _exactly(self, net: nn.Module, hessian: Hessian) -> dict[str, Any]:
        matrix = dense(hessian)
        results = _whole(self.prefix, net, hessian, *exact_spectrum(matrix, self.options["k"]))
        layers = {name: _mask(hessian, slices.values()) for name, slices in _layers(net, hessian).items() if slices}
        for name, mask in (_id_and_rest(net, hessian) | layers).items() if self.parts else ():
            results |= _flat(f"{self.prefix}/{name}", exact_spectrum(matrix[mask][:, mask], self.options["k"])[0])
        return results


def _in_float64(hessian_of: Callable[..., Hessian]) -> Hessian | None:
    """None of a net that cannot be computed in it: what else is wrong is so in the net's own precision, too."""
    try:
        return hessian_of(double=True)
    except (RuntimeError, LossOfOwnWeights) as error:
        if is_of_device(error):
            raise
        return None


def _flat(prefix: str, found: Spectrum) -> dict[str, Any]:
    """The dataclass as it is, its few eigenvalues also as numbers that can be drawn over epochs."""
    numbered = {
        f"{prefix}/{end}{number}{suffix}": float(value)
        for end in ("top", "bottom")
        for suffix in ("", "_residual")
        for number, value in enumerate(getattr(found, end + suffix), start=1)
    }
    return {prefix: found, **numbered}


def _whole(
    prefix: str, net: nn.Module, hessian: "Hessian | GaussNewton", found: Spectrum, leading: Tensor
) -> dict[str, Any]:
    """The spectrum, and where the eigenvector of the largest |lambda| lies: shares of its square."""
    results, square = _flat(prefix, found), leading.double().square()
    if layers := _layers(net, hessian):
        shares = [sum((square[where].sum() for where in at.values()), square.new_zeros(())) for at in layers.values()]
        results[f"{prefix}/leading"] = torch.stack(shares)
    if parts := _id_and_rest(net, hessian):
        results[f"{prefix}/id/leading"] = float(square[parts["id"]].sum())
    if isinstance(hessian, Hessian):
        results[f"{prefix}/chunk"] = float(hessian.chunk)
    return results


def _id_and_rest(net: nn.Module, hessian: "Hessian | GaussNewton") -> dict[str, Tensor]:
    """ID entries and all other parameters as masks of a vector; nothing for a net without ID entries."""
    masks = {layer.weight_name: mask for layer in layers_of(net) if (mask := layer.id_mask()) is not None}
    parts = [masks.get(name, torch.zeros_like(w, dtype=torch.bool)) for name, w in hessian.parameters.items()]
    flat = torch.cat([part.flatten() for part in parts])
    return {"id": flat, "rest": ~flat} if flat.any() else {}


def _layers(net: nn.Module, hessian: "Hessian | GaussNewton") -> dict[str, dict[str, slice]]:
    """Where each layer's trained parameters, weight and bias, lie in a vector; of packed ones its rows.

    What several layers share is the first one's, so that another may have nothing.
    """
    slices, names = hessian.slices(), {id(weight): name for name, weight in net.named_parameters()}
    found: dict[str, dict[str, slice]] = {}
    taken: set[int] = set()
    for layer in layers_of(net):
        found[layer.name] = own = {}
        for weight, rows in layer.parameters:
            name = names.get(id(weight), "")
            if name in slices and (at := _rows(slices[name], rows, len(weight))).start not in taken:
                own[name] = at
                taken.add(at.start)
    return found if taken else {}


def _rows(where: slice, rows: slice, length: int) -> slice:
    start, stop, _ = rows.indices(length)
    row = (where.stop - where.start) // length
    return slice(where.start + start * row, where.start + stop * row)


def _mask(hessian: "Hessian | GaussNewton", slices: Iterable[slice]) -> Tensor:
    mask = torch.zeros(hessian.size, dtype=torch.bool, device=hessian.like.device)
    for where in slices:
        mask[where] = True
    return mask
