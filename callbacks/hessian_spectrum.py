"""Curvature: the spectrum of the Hessian of the risk on fixed probe samples, after epochs."""

import logging
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from typing_extensions import override

from callbacks.base import Measure
from callbacks.protocol import few_samples, loss_of
from lightning_app.errors import DivergedError, UserError
from lightning_app.measures import Hessian, Restricted, Spectrum, check_asked, dense, exact_spectrum, spectrum
from lightning_app.networks import layers_of

__all__ = ["HessianSpectrum"]

log = logging.getLogger(__name__)


class HessianSpectrum(Measure):
    """Logs the spectrum of the Hessian of the mean loss (no penalty, BatchNorm with running statistics).

    The loss is the module's ``loss(outputs, labels)``, or cross-entropy where it has none.

    Under the prefix ``hessian``, or the ``prefix`` given; ``<part>/`` is nothing for the whole net:

    | key | meaning |
    |---|---|
    | ``hessian/<part>/top1``, ``top1_residual``, ... | largest eigenvalues; one lies within the residual of each |
    | ``hessian/<part>/bottom1``, ``bottom1_residual``, ... | the most negative ones |
    | ``hessian/<part>/unconverged`` | how many of these are not to be relied on; 0: eigenvalues up to multiplicity |
    | ``hessian/<part>/dimension``, ``products`` | number of eigenvalues; H v that it took |
    | ``hessian/<part>/trace``, ``frobenius``, ``trace_error``, ... | with standard errors |
    | ``hessian/<part>/index_low``, ``index_high`` | share of negative eigenvalues: the interval it lies in |
    | ``hessian/<part>/unresolved`` | share of eigenvalues too close to 0 for so few products to know their sign |
    | ``hessian/<part>/condition10_low``, ``condition10_high`` | largest over 10th percentile of |eigenvalue| |
    | ``hessian/<part>/nodes``, ``weights``, ``density`` | spectral density: rule, and histogram |
    | ``hessian/id/leading`` | share of the leading eigenvector's square that lies on ID entries |
    | ``hessian/leading`` | the same by layer: array (layers,) |

    ``<part>`` is, with ``parts``, ``layer07``: the diagonal block of a layer's weight and bias (no BatchNorm), ``id`` and
    ``rest``: of the ID entries and of all others.

    Args:
        every_n_epochs: after every so many epochs, and always after the final one. A product H v costs two gradients of
            the probe samples: the defaults take 3,800 gradients of an image, 8 % of a CIFAR-10 epoch.
        at_start: also before the first training step.
        samples: so many of the probe, evenly spread over it.
        k: eigenvalues at either end.
        steps: products of the run that finds the ends.
        probes: further runs that sample density, trace and norm of what is left; 0: the first run serves for both.
        probe_steps: products of each.
        tolerance: an eigenpair has converged when its residual is at most so much of its eigenvalue.
        parts: also of each layer, of the ID entries and of the rest; each costs as many products as the whole.
        exact: nets with at most so many parameters get all eigenvalues, in float64.
        double: in float64; otherwise in the precision of the weights, float32 or float64.
        seed: of the random starts.
        prefix: of the keys, so that a light spectrum every epoch and a full one now and then have their own.
    """

    family = "hessian"

    def __init__(
        self,
        every_n_epochs: int = 1,
        at_start: bool = True,
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
    ) -> None:
        super().__init__(every_n_epochs, at_start)
        check_asked("HessianSpectrum", k, steps, probes, probe_steps, tolerance)
        if samples < 1 or exact < 0:
            raise UserError(
                f"HessianSpectrum needs samples of at least 1 and exact of at least 0, got {samples}, {exact}."
            )
        self.samples = samples
        self.asked = {"k": k, "steps": steps, "probes": probes, "probe_steps": probe_steps, "tolerance": tolerance}
        self.asked["seed"] = seed
        self.parts = parts
        self.exact = exact
        self.double = double
        self.prefix = self.family = prefix

    @override
    def measure(self, trainer: pl.Trainer, net: nn.Module) -> Mapping[str, Any]:
        try:
            return self._spectra(trainer, net)
        except DivergedError as error:  # whoever trains the net decides what follows
            log.warning(f"epoch {trainer.current_epoch + 1}: no {self.prefix} keys: {error}")
            return {}

    def _spectra(self, trainer: pl.Trainer, net: nn.Module) -> dict[str, Any]:
        loss = loss_of(trainer.lightning_module)
        few = list(few_samples(trainer, net, self.samples))
        if sum(weight.numel() for weight in net.parameters() if weight.requires_grad) <= self.exact:
            return self._exactly(net, Hessian(net, few, loss, double=True))
        hessian = Hessian(net, few, loss, double=self.double)
        found, leading = spectrum(hessian, **self.asked)
        results = _flat(self.prefix, found) | _leading(self.prefix, net, hessian, leading)
        for name, mask in _id_and_rest(net, hessian).items() if self.parts else ():
            results |= _flat(f"{self.prefix}/{name}", spectrum(Restricted(hessian, mask), **self.asked)[0])
        for name, names in _layers(net, hessian).items() if self.parts else ():
            block = Hessian(net, few, loss, names, self.double)
            results |= _flat(f"{self.prefix}/{name}", spectrum(block, **self.asked)[0])
        return results

    def _exactly(self, net: nn.Module, hessian: Hessian) -> dict[str, Any]:
        matrix = dense(hessian)
        found, leading = exact_spectrum(matrix, self.asked["k"])
        results = _flat(self.prefix, found) | _leading(self.prefix, net, hessian, leading)
        masks = _id_and_rest(net, hessian) | _where_layers(net, hessian)
        for name, mask in masks.items() if self.parts else ():
            results |= _flat(f"{self.prefix}/{name}", exact_spectrum(matrix[mask][:, mask], self.asked["k"])[0])
        return results


def _flat(prefix: str, found: Spectrum) -> dict[str, Any]:
    """The dataclass as it is, its few eigenvalues also as numbers that can be drawn over epochs."""
    numbered = {
        f"{prefix}/{end}{place}{suffix}": float(value)
        for end in ("top", "bottom")
        for suffix in ("", "_residual")
        for place, value in enumerate(getattr(found, end + suffix), start=1)
    }
    return {prefix: found, **numbered}


def _leading(prefix: str, net: nn.Module, hessian: Hessian, leading: Tensor) -> dict[str, Any]:
    """Where the eigenvector of the largest |lambda| lies: shares of its square."""
    square = leading.double().square()
    results: dict[str, Any] = {}
    if layers := _where_layers(net, hessian):
        results[f"{prefix}/leading"] = torch.stack([square[mask].sum() for mask in layers.values()])
    if parts := _id_and_rest(net, hessian):
        results[f"{prefix}/id/leading"] = float(square[parts["id"]].sum())
    return results


def _id_and_rest(net: nn.Module, hessian: Hessian) -> dict[str, Tensor]:
    """ID entries and all other parameters as masks of a vector; nothing for a net without ID entries."""
    masks = {layer.weight_name: layer.id_mask() for layer in layers_of(net) if layer.has_id}
    parts = [masks.get(name, torch.zeros_like(w, dtype=torch.bool)) for name, w in hessian.parameters.items()]
    flat = torch.cat([part.flatten() for part in parts])
    return {"id": flat, "rest": ~flat} if flat.any() else {}


def _where_layers(net: nn.Module, hessian: Hessian) -> dict[str, Tensor]:
    """Each layer's parameters as a mask of a vector."""
    places, masks = hessian.places(), {}
    for layer, names in _layers(net, hessian).items():
        masks[layer] = torch.zeros(hessian.size, dtype=torch.bool, device=hessian.like.device)
        for name in names:
            masks[layer][places[name]] = True
    return masks


def _layers(net: nn.Module, hessian: Hessian) -> dict[str, list[str]]:
    """Names of each layer's trained parameters: weight and bias."""
    roots = {layer.name: layer.weight_name.removesuffix("weight") for layer in layers_of(net)}
    both = {layer: (f"{root}weight", f"{root}bias") for layer, root in roots.items()}
    found = {layer: [name for name in names if name in hessian.parameters] for layer, names in both.items()}
    return {layer: names for layer, names in found.items() if names}
