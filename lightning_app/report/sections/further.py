"""Measures that no other section shows, such as those of your own: curves of each number over epochs."""

from collections.abc import Collection

from lightning_app.common.text import unlike
from lightning_app.report.blocks import Figure, Section
from lightning_app.report.figures import Curve, figure_of_curves
from lightning_app.report.page_data import PageData
from lightning_app.report.profiles import by_layer_keys, profiles, several_seeds

TITLE = "Further measures"
MOST = 12  # panels of one family
REST = " {0} more numbers are not drawn; their last values are at the end of the page."
BY_LAYER = "{0} by layer: one line per epoch, later ones darker."


def section(page: PageData, shown: Collection[str]) -> Section | None:
    """A figure for each family of keys, less those that are ``shown`` elsewhere, by family or by name; None without any."""
    every = dict.fromkeys(name for net in page.nets for name in net.names)
    names = [name for name in every if name not in shown and name.split("/")[0] not in shown]
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.split("/")[0], []).append(name)
    blocks = [figure for family, keys in families.items() for figure in _figures(page, family, keys)]
    return Section("own-measures", TITLE, blocks=blocks) if blocks else None


def _figures(page: PageData, family: str, names: list[str]) -> list[Figure]:
    """Curves of the numbers of whole nets, and profiles of those of single layers."""
    layered = by_layer_keys(names)
    whole = [name for name in names if not any(name in keys.values() for keys in layered.values())]
    caption = f"{family}: numbers logged for whole nets."
    rest = REST.format(len(whole) - MOST) * (len(whole) > MOST)
    keys: dict[str, str] = {}
    for name in whole[:MOST]:  # "own/a/b" and "own/a-b" are two; a family may be one number
        end = name.removeprefix(f"{family}/").replace("/", "-")
        keys[name] = unlike(f"own-{family}-{end}", keys.values())
    shown = [Curve(key, name, name, name.split("/")[-1]) for name, key in keys.items()]
    meanings = {name: text for run in page.runs for name, text in run.described.items() if name in whole[:MOST]}
    described = "".join(f" {name}: {text.rstrip('.')}." for name, text in meanings.items())
    found = figure_of_curves(page, f"own-{family}", caption + described + rest, shown)
    quantities = {key: (f"{key[0]}/{key[1]}", key[1]) for key in [*layered][:MOST]}
    return found + profiles(page, f"own-{family}-layers", BY_LAYER.format(family) + several_seeds(page), quantities)
