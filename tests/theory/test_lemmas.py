"""Lemmas 3 and 4, and that their checks see what breaks them. Lemmas 1 and 2: test_small_norm.py."""

import pytest
import torch

from lightning_app.theory.li_et_al.lemmas import directional_derivatives, lemma_3, lemma_4
from lightning_app.theory.li_et_al.shortcut import IDENTITY, RELU, TANH, ShortcutForm
from tests.theory.test_zero_point import SOFTPLUS, data

FORMS = [
    ShortcutForm(3, 1),
    ShortcutForm(3, 2),
    ShortcutForm(2, 3, TANH, TANH, TANH),
    ShortcutForm(2, 4),
    ShortcutForm(3, 2, RELU, SOFTPLUS, TANH, bias=True),
    ShortcutForm(2, 3, IDENTITY, SOFTPLUS, SOFTPLUS, bias=True),
]
NETS = pytest.mark.parametrize(
    "form", FORMS, ids=lambda form: f"R={form.units} n={form.n} {form.mid.name}{' bias' * form.bias}"
)


@NETS
def test_lemma_3(form):
    found = lemma_3(form, *data())
    assert found.outputs == 0 and found.derivatives < 1e-12


def test_lemma_3_is_sharp():
    """With all n matrices of one unit the derivative of order n is there."""
    form, (x, y) = ShortcutForm(3, 3), data()
    weights = torch.zeros(3, 3, 3, 3, dtype=torch.float64)
    weights[1] = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = directional_derivatives(
        lambda p: form.loss(p, x, y), torch.zeros(81, dtype=torch.float64), form.vector(weights), 3
    )
    assert found[:2].abs().max() < 1e-12 and found[2].abs() > 0.1


@NETS
def test_lemma_4(form):
    found = lemma_4(form, *data())
    assert found.losses == 0 and found.hessians < 1e-12
