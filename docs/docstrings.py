"""What a callback's docstring says of its measure: the one text behind its page, the index of keys, and the tests of both.

Read from the source by griffe, nothing is imported. A class docstring has the sections of `SECTIONS` and `Args:`; its
table of keys has rows ``| keys | unit | meaning |``. In a key layer07 and block05 stand for any of their kind, `<s>` for what
stands in the text, [...] for what may be missing, and `<field>` for the fields of the dataclasses that the meaning names.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import griffe
from comments import MEASURES, Comments, comment_of, exported, fields, linked

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = {  # in the docstring -> on the page
    "Definition": "Definition",
    "Keys": "Keys",
    "Interpretation": "Interpretation",
    "Cost": "Cost",
    "Breaks": "What breaks it",
    "Source": "Source",
}
YOUR_OWN = ("Measure", "MeasureContext", "Scalar", "StatefulMeasure")  # the page "In your project" has them
SHOWING = ("EpochBar", "ProgressLines")  # log nothing
EVERY_RUN = ("TrainingMetrics", *SHOWING)  # measure no net: they have a page together
HEAD = re.compile(r"\| key \| unit \| meaning \|\n\|[-|]+\|\n")
SPAN = re.compile(r"``(.+?)``")


@dataclass(frozen=True)
class Row:
    """A row of a table of keys."""

    keys: tuple[str, ...]
    unit: str
    meaning: str
    records: tuple[griffe.Class, ...]  # whose fields `<field>` stands for

    def expanded(self) -> list[tuple[str, str]]:
        """(key, meaning), with every field in the place of `<field>`."""
        return [
            (key.replace("<field>", field), text if field else self.meaning)
            for key in self.keys
            for field, text in (self._fields() if "<field>" in key else [("", "")])
        ]

    def _fields(self) -> list[tuple[str, str]]:
        return [(field.name, comment_of(field)) for record in self.records for field in fields(record)]


@dataclass(frozen=True)
class Option:
    """An argument of a callback."""

    name: str
    annotation: str
    default: str
    meaning: str


class Documented:
    """A callback of `callbacks.__all__` with its docstring taken apart."""

    def __init__(self, cls: griffe.Class, measures: griffe.Module) -> None:
        self.name, self.stem = cls.name, cls.module.name
        self._cls, self._measures, self._paths = cls, measures, exported(measures)
        self._parsed = cls.docstring.parse("google", warnings=False)

    @cached_property
    def summary(self) -> str:
        return self._text.partition("\n\n")[0]

    @cached_property
    def description(self) -> str:
        return self._text.partition("\n\n")[2]

    @cached_property
    def sections(self) -> dict[str, str]:
        """Title in the docstring -> Markdown."""
        found = [part for part in self._parsed if part.kind is griffe.DocstringSectionKind.admonition]
        return {part.title: self.linked(part.value.description) for part in found}

    @cached_property
    def rows(self) -> list[Row]:
        """The table of keys."""
        table = HEAD.split(self.sections.get("Keys", ""))[1:]
        lines = [line for part in table for line in part.split("\n\n")[0].splitlines()]
        return [self._row(*(cell.strip() for cell in line.strip(" |").split(" |"))) for line in lines]

    @cached_property
    def records(self) -> list[griffe.Class]:
        """Dataclasses whose fields become keys, once each."""
        return list({record.path: record for row in self.rows for record in row.records}.values())

    @cached_property
    def options(self) -> list[Option]:
        """The class's own, then those that it hands on to classes that it is derived from."""
        found: dict[str, Option] = {}
        for cls in (self._cls, *self._cls.mro()):
            sections = cls.docstring.parse("google", warnings=False) if cls.docstring else []
            meanings = {
                one.name: one.description for part in sections if part.kind.value == "parameters" for one in part.value
            }
            for one in cls.members["__init__"].parameters if "__init__" in cls.members else ():
                if one.name != "self" and one.kind is not griffe.ParameterKind.var_keyword:
                    option = Option(one.name, str(one.annotation), str(one.default), meanings.get(one.name, ""))
                    found.setdefault(one.name, option)
        return [*found.values()]

    @cached_property
    def behind(self) -> list[griffe.Object]:
        """The functions and classes that the callback takes from `lightning_app.measures`."""
        taken = [path.split(".") for path in self._cls.module.imports.values() if path.startswith(f"{MEASURES}.")]
        found = [self._find(self._paths[name]) for *_, name in taken if name in self._paths]
        return [one for one in found if not one.is_attribute and not one.name.startswith("check_")]

    def linked(self, text: str) -> str:
        """With links from backticked names of `lightning_app.measures`."""
        return linked(text, self._paths)

    @cached_property
    def _text(self) -> str:
        return self.linked(self._parsed[0].value)

    def _row(self, keys: str, unit: str = "", meaning: str = "") -> Row:
        names = re.findall(r"`(\w+)`", meaning)
        return Row(tuple(SPAN.findall(keys)), unit, meaning, tuple(filter(None, map(self._record, names))))

    def _record(self, name: str) -> griffe.Class | None:
        found = self._find(self._paths[name]) if name in self._paths else self._cls.module.members.get(name)
        return found if found is not None and found.is_class else None

    def _find(self, path: str) -> griffe.Object:
        return self._measures[path.removeprefix(f"{MEASURES}.")]


def summary_of(thing: griffe.Object) -> str:
    """The first paragraph of a docstring."""
    return thing.docstring.value.partition("\n\n")[0] if thing.docstring else ""


def documented() -> list[Documented]:
    """Every exported callback that measures or shows something by itself."""
    extensions = griffe.load_extensions(Comments)
    ours = {
        name: griffe.load(name, search_paths=[ROOT], extensions=extensions) for name in ("callbacks", "lightning_app")
    }
    callbacks, measures = ours["callbacks"], ours["lightning_app"]["measures"]
    return [Documented(callbacks[name].final_target, measures) for name in callbacks.exports if name not in YOUR_OWN]
