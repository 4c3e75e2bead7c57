"""A griffe extension: what fields say in trailing comments, and links from backticked names to their pages.

A field of a dataclass is documented where it is born, ``median: float  # over samples``, and a docstring names a
function like `this`. Both become documentation here, so that no docstring has to be written for it.
"""

import re
from typing import Any

from griffe import Attribute, Class, Extension, Module, Object

NAME = re.compile(r"(?<!`)`([\w.]+)`(?!`)")
COMMENT = re.compile(r"(?:^|\s\s)# (.*)$")
DOCTEST = re.compile(r"^>>> .*\n?(?:^.+\n?)*", re.MULTILINE)
MEASURES = "lightning_app.measures"


class Comments(Extension):
    """For every package that is read."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        texts = {field.name: comment_of(field) for field in fields(cls)}
        if cls.docstring and any(texts.values()):
            lines = [f"    {name}: {comment}" for name, comment in texts.items() if comment]
            cls.docstring.value = "\n".join([cls.docstring.value.rstrip(), "", "Attributes:", *lines])

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        if pkg.name == MEASURES.split(".")[0]:
            for module in modules(pkg["measures"]):
                _link(module, exported(pkg["measures"]))
        if pkg.name == "callbacks":
            for module in modules(pkg):
                _link(module, {})


def fields(cls: Class) -> list[Attribute]:
    """A dataclass's fields, in order."""
    return [member for member in cls.members.values() if member.is_attribute and member.annotation is not None]


def comment_of(field: Attribute) -> str:
    """What stands behind a field, on its line or lines; "" if nothing does."""
    return " ".join(found[1] for line in field.lines if (found := COMMENT.search(line)))


def modules(package: Module) -> list[Module]:
    """The modules of a package and of the packages in it."""
    return [
        found
        for one in package.modules.values()
        for found in (modules(one) if one.is_package or one.is_subpackage else [one])
    ]


def exported(measures: Module) -> dict[str, str]:
    """Public classes and functions in the modules of `lightning_app.measures`, by every way to write them -> full path."""
    paths = {}
    for module in modules(measures):
        for name in (name for name, one in (module.classes | module.functions).items() if one.is_public):
            path = f"{module.path}.{name}"
            paths |= dict.fromkeys((name, f"{module.name}.{name}", f"{MEASURES}.{name}", path), path)
    return paths | {module.path: module.path for module in modules(measures)}


def linked(text: str, paths: dict[str, str]) -> str:
    """Backticked names with a page as links to it.

    >>> linked("see `f` and ``f``", {"f": "a.f"})
    'see [`f`][a.f] and ``f``'
    """
    return NAME.sub(lambda found: f"[`{found[1]}`][{paths[found[1]]}]" if found[1] in paths else found[0], text)


def fenced(text: str) -> str:
    """Doctests as blocks of code; in Markdown they would be quotations."""
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)


def _link(owner: Object, paths: dict[str, str]) -> None:
    if owner.docstring:
        owner.docstring.value = linked(fenced(owner.docstring.value), paths)
    for member in owner.members.values():
        if not member.is_alias:
            _link(member, paths)
