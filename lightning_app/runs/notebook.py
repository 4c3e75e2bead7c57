"""A run in a notebook: open it, and every number is a row of a tidy pandas frame.

    run = open_run("runs/cifar10/pair20")
    run.table()["test/error"].unstack("member").plot()

A frame is a copy of what the files say: nothing is smoothed, nothing is filled in, a measured NaN is a NaN. Nets are named
as in the report, which reads the same files.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from lightning_app.common.errors import UserError, nearest, unknown
from lightning_app.common.files import with_home
from lightning_app.common.numbers import plural
from lightning_app.runs.configuration import flatten
from lightning_app.runs.folder import ARRAYS, FINISHED, LOG, LayerRow, RunFolder, find_runs, run_folders
from lightning_app.runs.naming import OF_LAYER, name_nets
from lightning_app.runs.reader import Run, read_runs

__all__ = ["OpenRun", "frames", "open_run"]

TEXTS = ("run", "arm", "member", "name")
COLUMNS = ("run", "arm", "seed", "member", "epoch", "step", "name", "value")  # of `frames`
SHOWN = ("train/risk", "train/error", "test/risk", "test/error")  # what a run shows of itself


def open_run(path: Path | str) -> "OpenRun":
    """Open one run folder.

    >>> from lightning_app.runs import Row
    >>> folder = getfixture("tmp_path") / "pair20"  # pytest's: an empty folder
    >>> errors = {"plain-seed00": 0.5, "residual-seed00": 0.25}
    >>> RunFolder(folder).append(Row(net, 1, 391, "test/error", error) for net, error in errors.items())
    >>> run = open_run(folder)
    >>> run.table()["test/error"].unstack("member")  # doctest: +NORMALIZE_WHITESPACE
    member  plain-seed00  residual-seed00
    epoch
    1                0.5             0.25
    >>> run.finals()[["arm", "seed", "test/error"]]  # doctest: +NORMALIZE_WHITESPACE
                          arm  seed  test/error
    member
    plain-seed00        plain     0        0.50
    residual-seed00  residual     0        0.25

    Raises:
        UserError: if there is no run folder at the path, naming the runs below it if there are some.
    """
    folder = RunFolder(with_home(path))
    if not folder.has_log:
        below = [str(path) for path in sorted(run_folders(folder.path))[:3]]
        hint = f"; there are {', '.join(below)}, ...: open one, or all with frames()" if below else ""
        raise UserError(f"expected a run folder with a {LOG}, found none in {folder.path}{hint}.")
    return OpenRun(Run(folder))


@dataclass(frozen=True)
class OpenRun:
    """One run's numbers, arrays and configuration as pandas frames."""

    run: Run

    @property
    def folder(self) -> RunFolder:
        return self.run.folder

    def log(self) -> pd.DataFrame:
        """Every number: member ("" for the whole run), epoch (completed ones), step, name, value."""
        return self.run.log.astype({"member": str, "name": str})

    def table(self) -> pd.DataFrame:
        """A row for each (member, epoch), a column for each name; NaN where a number was not measured."""
        return _wide(self.run.log, ["member", "epoch"])

    def finals(self) -> pd.DataFrame:
        """A row for each net: arm, seed, completed epochs, and the last value of everything, never the best.

        A family with a schedule of its own may have been measured last in an earlier epoch.
        """
        return self.nets().join(self._last())

    def nets(self) -> pd.DataFrame:
        """A row for each net: its arm, its seed (missing if unknown), completed epochs.

        UserError: if the run's record of its nets cannot be read.
        """
        nets = self.run.nets
        self.run.check()
        columns = {
            "arm": [net.arm for net in nets],
            "seed": pd.array([net.seed for net in nets], dtype="Int64"),
            "epoch": [net.epoch for net in nets],
        }
        return pd.DataFrame(columns, index=pd.Index([net.name for net in nets], name="member"))

    def members(self) -> list[str]:
        """The nets' names, in the order of the log."""
        return [name for name in self.run.last_epochs if name]

    def layers(self) -> pd.DataFrame:
        """The numbers of single layers, their names taken apart: member, epoch, family, layer, field, value.

        ``cushion/layer10/median`` is family ``cushion``, layer ``layer10``, field ``median``.
        """
        names = self.run.log["name"].cat
        parts = names.categories.to_series().str.extract(OF_LAYER)[["family", "layer", "field"]]
        own = parts.iloc[names.codes].set_index(self.run.log.index)
        log = self.run.log[["member", "epoch"]].astype({"member": str}).join(own).join(self.run.log["value"])
        return log.dropna(subset=["layer"], ignore_index=True)

    def modules(self) -> pd.DataFrame:
        """What the layers are: member, layer, path in the net, kind, shape, reason why it has no cushion; may be empty."""
        return pd.DataFrame(self.folder.layers(), columns=LayerRow._fields)

    def samples(self, file: str = "cushion", field: str = "samples", epoch: float | None = None) -> pd.DataFrame:
        """The values behind the numbers, one per row: member, epoch, family, layer ("" for the whole net), sample, value.

        Args:
            file: name of the arrays' file, measurements/epoch=.../<file>.npz.
            field: last part of the arrays' keys: ``samples``, ``samples_branch``, ``values`` of ``bn_lambda``, ...
            epoch: read only this epoch; None: all.

        Raises:
            UserError: if the file, epoch or field is not there (the message lists those that are), or if an array does not have
                one dimension.
        """
        epochs = self._array_epochs(file, epoch)
        found = [
            (key, at, *_parts(key)[:3], values)
            for at in epochs
            for key, values in self.folder.arrays(at, file, lambda key: _parts(key)[-1] == field).items()
        ]
        if not found:
            fields = sorted({_parts(key)[-1] for key in self.folder.arrays(epochs[-1], file)})
            raise UserError(f"no array '{field}' in {file}.npz; there are {', '.join(fields)}.")
        for key, *_, of_key in found:
            if of_key.ndim != 1:
                raise UserError(
                    f"{key} has shape {of_key.shape}, not one value per sample: read it with run.folder.arrays."
                )
        _, *whose, values = zip(*found)
        sizes = [len(one) for one in values]
        columns = dict(zip(("epoch", "member", "family", "layer"), whose, strict=True))
        frame = pd.DataFrame(columns)[["member", "epoch", "family", "layer"]]
        frame = frame.loc[np.repeat(frame.index, sizes)].reset_index(drop=True)
        return frame.assign(sample=np.concatenate([np.arange(size) for size in sizes]), value=np.concatenate(values))

    def config(self) -> pd.Series:
        """The configuration, its leaves by dotted key: ``model.optimizer.init_args.lr``."""
        return pd.Series(dict(flatten(self.run.config)), name=self.run.label, dtype=object)

    def show(self, *sections: str, height: int = 700) -> "PageFrame":
        """Show the page of `report`, made of the present numbers, as the notebook's output.

        The page is stored in the notebook (some MB for a run with all measures), so name the sections that you need.

        Args:
            sections: keys of sections, as in the page's address ("learning", "weights"); none: the whole page.
            height: height of the frame in pixels.

        Raises:
            UserError: for a section that the page does not have; the message lists those that it has.
        """
        from lightning_app.report.page import render, sections_of
        from lightning_app.report.page_data import gather

        page = gather([self.folder])
        found = {section.key: section for section in sections_of(page)}
        for key in sections:
            if key not in found:
                raise unknown("section", key, found)
        return PageFrame(render([found[key] for key in sections or found], self.run.label, page), height)

    def _last(self) -> pd.DataFrame:
        """A row for each net, the last value of everything."""
        return _wide(self.run.last_rows[self.run.last_rows["member"] != ""], "member")

    def _array_epochs(self, file: str, epoch: float | None) -> list[float]:
        there = self.folder.array_epochs(file)
        if not there:
            files = sorted({found.stem for found in (self.folder.path / ARRAYS).glob("epoch=*/*.npz")})
            raise UserError(f"no {file}.npz in {self.folder.path}; there are {', '.join(files) or 'no arrays'}.")
        if epoch is not None and epoch not in there:
            raise UserError(f"{file} has no arrays of epoch {epoch}; it has {', '.join(map(str, there))}.")
        return there if epoch is None else [epoch]

    def __repr__(self) -> str:
        return f"OpenRun({str(self.folder.path)!r}, {self._standing()})"

    def _repr_html_(self) -> str:
        """What a notebook shows: where the run is, how far, and its nets' last risks and errors.

        A file that cannot be read costs arms and seeds, and is named.
        """
        try:
            finals, notice = self.finals(), ""
        except UserError as error:
            finals, notice = self._last(), f"<p>No arms and seeds: {escape(str(error))}</p>"
        shown = [column for column in ("arm", "seed", "epoch", *SHOWN) if column in finals]
        title = f"<p><b>{escape(self.run.label)}</b> {escape(str(self.folder.path))}, {self._standing()}</p>"
        return title + notice + finals[shown].to_html(escape=True, float_format="{:.4g}".format, na_rep="–")

    def _standing(self) -> str:
        state = "finished" if (self.folder.path / FINISHED).exists() else "not finished"
        return f"{plural(len(self.members()), 'net')}, {plural(self.folder.last_epoch or 0, 'epoch')}, {state}"


@dataclass(frozen=True)
class PageFrame:
    """A page for a notebook's output, in a frame that can reach nothing of the notebook."""

    page: str
    height: int

    def _repr_html_(self) -> str:
        page = self.page.replace("<head>", '<head><base href="about:srcdoc">', 1)  # or links would leave the frame
        sandbox = "allow-scripts allow-downloads"
        return (
            f'<iframe sandbox="{sandbox}" srcdoc="{escape(page)}" title="Report" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )


def frames(paths: Path | str | Iterable[Path | str], names: str | Collection[str] | None = None) -> pd.DataFrame:
    """All numbers of several runs: run, arm, seed, member, epoch, step, name, value; texts are pandas categories.

    Args:
        paths: run folders, or folders of run folders.
        names: names of the numbers to read, or one name; None: all.

    Raises:
        UserError: if a path holds no run, if no run has a number of one of the names, or if a run's record of its nets cannot be
            read.
    """
    paths = [paths] if isinstance(paths, str | Path) else [*paths]
    if not paths:
        raise UserError("expected at least one run folder, or folder of them, got none.")
    runs = read_runs(find_runs(paths))
    names = [names] if isinstance(names, str) else names
    whose = pd.DataFrame(
        [(name.net.run.label, name.net.name, name.group, name.net.seed) for name in name_nets(runs)],
        columns=["run", "member", "arm", "seed"],
    )
    for run in runs:
        run.check()
    logs = [run.log.astype({"member": str, "name": str}).assign(run=run.label) for run in runs]
    log = pd.concat(logs, ignore_index=True)
    known = log["name"].unique()
    if missing := [name for name in names or () if name not in known]:
        near = "".join(f" Did you mean {name}?" for name in nearest(missing[0], known))
        raise UserError(f"none of these runs has a number {missing[0]}.{near}")
    chosen = log if names is None else log[log["name"].isin([*names])]
    frame = chosen.merge(whose.astype({"seed": "Int64"}), on=["run", "member"], how="left")[[*COLUMNS]]
    return frame.astype({text: pd.CategoricalDtype(frame[text].dropna().unique()) for text in TEXTS})


def _wide(log: pd.DataFrame, index: str | list[str]) -> pd.DataFrame:
    """One row a key, in order; one column a name, in the order of the log."""
    text = log.astype({"member": str, "name": str})
    return text.pivot(index=index, columns="name", values="value").reindex(columns=text["name"].unique())


def _parts(key: str) -> tuple[str, str, str, str]:
    """Member, family, layer and field of an array's key.

    >>> _parts("plain-seed00/interlayer_batch1/block02/samples"), _parts("net/hessian/top")
    (('plain-seed00', 'interlayer_batch1', 'block02', 'samples'), ('net', 'hessian', '', 'top'))
    """
    member, _, name = key.partition("/")
    if found := OF_LAYER.fullmatch(name):
        return member, found["family"], found["layer"], found["field"]
    family, _, field = name.partition("/")
    return member, family, "", field
