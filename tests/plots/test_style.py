"""Colours that can be told apart from the page, on light and on dark ground; styles that can be told apart without them."""

import pytest

from lightning_app.plots.style import COLOURS, DASHES, MARKERS, styles

PAGES = ("#ffffff", "#14171a")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", [name for name in COLOURS if name != "grid"])
def test_contrast_with_the_page(name):
    assert all(contrast(colour, page) >= 3 for colour, page in zip(COLOURS[name], PAGES, strict=True))


def test_colours_are_different_words():
    """`drawing` replaces each light colour by its name: two names for one would mix them up."""
    light = [light for light, _ in COLOURS.values()]
    assert len(set(light)) == len(light)


def test_styles_differ_without_colour():
    looks = styles(["plain", "residual"] * 20)
    assert len({(look.dash, look.marker) for look in looks}) == len(DASHES) * len(MARKERS) == 40
