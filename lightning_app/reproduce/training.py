"""Training runs of an artefact: found, resumed or trained from the start, each as a process of its own.

A scale changes epochs, seeds and the subset of data of a run, nothing else.
"""

import itertools
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

from lightning_app.common.errors import UserError
from lightning_app.common.processes import to_its_end
from lightning_app.common.seeds import parse_seeds, spell_seeds
from lightning_app.papers import recipes
from lightning_app.papers.parts import REDUCED, Reduced, Run, Scale
from lightning_app.reproduce.job import Job, JobOptions, digest_of
from lightning_app.reproduce.packing import MANIFEST, file_digest, home_of_runs, pack, unpack
from lightning_app.runs import RunFolder, reader
from lightning_app.runs.configuration import NOT_COMPARED, flatten
from lightning_app.runs.folder import CONFIG, ID, LAST, WEIGHTS
from lightning_app.runs.lock import claimed

# Beginnings of keys that decide what is looked at, and when, not what is trained. That a claim's measures are there is
# checked where the claim reads them.
OBSERVING = ("trainer.callbacks", "trainer.num_sanity_val_steps", "trainer.check_val_every_n_epoch")


class RunFailed(Exception):
    """A training process ended with an exit code other than 0; its own message is on the terminal."""

    def __init__(self, job: "TrainingJob", code: int) -> None:
        super().__init__(f"the run {job.name} stopped (exit code {code}). Run the same command again to resume it.")
        self.code = code


@dataclass(frozen=True)
class FoundRun:
    """A run on disk that does what a job asks, with some of the seeds."""

    job: "TrainingJob"
    folder: RunFolder
    seeds: tuple[int, ...]
    epoch: int  # completed
    state: Literal["finished", "interrupted", "lost"]  # lost: without a checkpoint to go on from

    @cached_property
    def read(self) -> reader.Run:
        """For claims and for the record, its log once."""
        return reader.Run(self.folder)

    @property
    def worth(self) -> tuple[int, bool, bool]:
        """Of two copies of a run, or two runs of the same seeds, the one with more of this counts."""
        weights = any((self.folder.checkpoints / name).exists() for name in (LAST, WEIGHTS))
        return self.epoch, self.state == "finished", weights

    @property
    def packed_name(self) -> str:
        """Name of its evidence: the job's, with the seeds where it has not all of them: "depth20~0-0"."""
        return self.job.name if set(self.seeds) == {*self.job.seeds} else f"{self.job.name}~{spell_seeds(self.seeds)}"

    def lies_in(self, folder: Path) -> bool:
        return self.folder.path.resolve().is_relative_to(folder.resolve())

    def record(self, out: Path) -> dict[str, Any]:
        """What a verdict rests on, for its record."""
        inside, log = self.lies_in(out), self.read.log
        times = log[(log["member"] == "") & (log["name"].str.startswith("cost/") | (log["name"] == "time/epoch"))]
        return {
            "run": self.job.name,
            "folder": self.folder.path.resolve().relative_to(out.resolve()).as_posix() if inside else None,
            "manifest": file_digest(self.folder.path / MANIFEST) if inside else None,
            "digest": self.folder.config()["run"]["plan"],  # under which it was trained
            "state": self.state,
            "epochs": self.epoch,
            "of_epochs": self.job.epochs,
            "seeds": [*self.seeds],
            "seconds": round(float(times["value"].sum()), 1) if len(times) else None,  # of training and measuring
            "made": self.folder.made(),
        }


@dataclass(frozen=True)
class TrainingJob(Job):
    """A run at a scale: what to ask of ``fit``, and how to recognise a run that did it."""

    paper: str
    run: Run
    scale: Scale

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def config(self) -> Path:
        return recipes.path_of(self.paper, self.name)

    @property
    def seeds(self) -> tuple[int, ...]:
        if self.reduced:
            return parse_seeds(self.reduced.seeds)
        return parse_seeds(min(self.run.seeds, self.scale.seeds or self.run.seeds))

    @property
    def reduced(self) -> Reduced | None:
        """What is asked for at reduced scale; None at the others."""
        return self.run.reduced if self.scale is REDUCED else None

    @property
    def epochs_of_the_paper(self) -> int:
        return self.recipe["trainer"]["max_epochs"]

    @cached_property
    def epochs(self) -> int:
        if self.reduced:
            return self.reduced.epochs
        return min(self.epochs_of_the_paper, self.scale.epochs or self.epochs_of_the_paper)

    @cached_property
    def arms(self) -> list[str]:
        """Names of the arms, in the configuration's order."""
        return list(self.recipe["model"].get("arms") or ["net"])

    @property
    def options(self) -> dict[str, str]:
        """Options of ``fit`` that make the scale; the seeds are chosen by whoever runs it."""
        limits = {"train_limit": self.scale.train_limit, "test_limit": self.scale.test_limit}
        asked = {"trainer.max_epochs": str(self.epochs)}
        asked |= {f"data.init_args.{key}": "null" if value is None else str(value) for key, value in limits.items()}
        if self.reduced:
            asked["model.scheduler.init_args.milestones"] = str([*self.reduced.milestones])
            asked["trainer.check_val_every_n_epoch"] = "2"  # levels of risk are passed sooner
        # A few epochs are all evaluated: the YAML's rhythm might miss them.
        return asked | ({"trainer.check_val_every_n_epoch": "1"} if self.scale.epochs else {})

    @cached_property
    def digest(self) -> str:
        """16 hex digits of what is trained: data, model, optimizer, penalty, schedule and epochs. The run records it.

        Where and how fast it is trained, the seeds, and what is measured meanwhile do not count.
        """
        asked = {**dict(flatten(self.recipe, lists=False)), **self.options}
        compared = [key for key in asked if not key.startswith((*NOT_COMPARED, *OBSERVING))]
        return digest_of({key: asked[key] for key in compared})

    def matches(self, config: Mapping[str, Any]) -> bool:
        """Was a run with this configuration trained for this plan? One that a user started, whatever it did, was not."""
        run = config.get("run")
        return isinstance(run, Mapping) and run.get("plan") == self.digest

    def decides(self, key: str) -> bool:
        """Does the plan's own YAML say where a run is to be trained, as on one CPU for equal rounding?"""
        return key in dict(flatten(recipes.own(self.paper, self.name), lists=False))

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The run's configuration, with that of all runs below it."""
        return recipes.recipe(self.paper, self.name)

    def found(self, root: Path | None, kept: Path | None = None) -> list[FoundRun]:
        """Its runs, those kept as evidence first, each of them oldest first."""
        homes = [] if kept is None else [home_of_runs(kept, self.paper, self.scale)]
        homes += [] if root is None else [root / self.group]
        found = [run for home in homes for run in self._in(home)]
        # A run that went on after it was packed is one run: of its copies one that can go on counts, and of these the furthest.
        furthest = {
            _identity(run.folder): run for run in sorted(found, key=lambda run: (run.state != "lost", run.worth))
        }
        return [run for run in found if furthest[_identity(run.folder)] is run]

    def _in(self, home: Path) -> Iterator[FoundRun]:
        folders = sorted(path for path in home.glob(f"{self.name}*") if path.name.split("~")[0] == self.name)
        for run in (run for run in map(RunFolder, folders) if run.has_log):
            if not self.matches(config := run.config()):
                continue
            try:
                seeds = parse_seeds(config["model"]["seeds"])
            except (LookupError, TypeError) as error:
                raise UserError(f"{run.path / CONFIG} has no model.seeds as `fit` writes them: restore it.") from error
            if (run.finished or 0) >= self.epochs:
                yield FoundRun(self, run, seeds, self.epochs, "finished")
            else:
                resumable = (run.checkpoints / LAST).exists()
                yield FoundRun(self, run, seeds, run.last_epoch or 0, "interrupted" if resumable else "lost")

    def furthest(self, root: Path | None, kept: Path | None = None) -> dict[int, FoundRun]:
        """For each seed, the run that took it furthest, among those that have ended or can be resumed."""
        runs = sorted((run for run in self.found(root, kept) if run.state != "lost"), key=lambda run: run.worth)
        return {seed: run for run in runs for seed in run.seeds}

    def state(self, root: Path | None, kept: Path | None = None) -> str:
        """In words: "finished", "1 of 3 seeds, 2 more at epoch 70 of 200", "epoch 12 of 200", "not run".

        Seeds whose runs have lost their checkpoint are named too, as verdicts may rest on them: "epoch 1 of 200 without a
        checkpoint".
        """
        runs = {seed: run for seed, run in self.furthest(root, kept).items() if seed in self.seeds}
        behind = [run.epoch for run in runs.values() if run.state != "finished"]
        done = len(runs) - len(behind)
        if done == len(self.seeds):
            return "finished"
        lost: dict[int, int] = {}
        for run in self.found(root, kept):
            for seed in {*run.seeds} & {*self.seeds} - runs.keys() if run.epoch else ():
                lost[seed] = max(lost.get(seed, 0), run.epoch)
        parts = [f"{done} of {len(self.seeds)} seeds"] if done else []
        for epochs, how in ((sorted(behind), ""), (sorted(lost.values()), " without a checkpoint")):
            if epochs:
                where = f"epoch {epochs[0]}" if epochs[0] == epochs[-1] else f"epochs {epochs[0]} to {epochs[-1]}"
                parts.append(f"{f'{len(epochs)} more at ' if parts else ''}{where} of {self.epochs}{how}")
        return ", ".join(parts) or "not run"

    def complete(self, root: Path, options: JobOptions, kept: Path | None = None) -> None:
        wanted = set(self.seeds) & set(self.seeds if options.seeds is None else options.seeds)
        # Seed by seed, so that others can be trained beside these, with those of the runs that will go on.
        begun = [set(run.seeds) for run in self._interrupted(wanted, root, kept)]
        with ExitStack() as claims:
            places = [(f"{self.name}.{seed}", f"run {self.name}, seed {seed}") for seed in sorted(wanted.union(*begun))]
            locks = [claims.enter_context(claimed(root / self.group, *place)) for place in places]
            for run in self._interrupted(wanted, root, kept):
                checkpoint = self._writable(run.folder, root).checkpoints / LAST
                self._fit(root, run.seeds, [*options.fit, "--ckpt_path", str(checkpoint)], locks)
            if lacking := wanted - self._covered(root, kept):
                self._fit(root, sorted(lacking), options.fit, locks)

    def _interrupted(self, seeds: Collection[int], root: Path, kept: Path | None) -> list[FoundRun]:
        """The runs that took any of these seeds furthest and did not end, without those that others train anyway."""
        furthest = {seed: run for seed, run in self.furthest(root, kept).items() if seed in seeds}
        runs = {run.folder.path: run for run in furthest.values() if run.state == "interrupted"}
        for path, run in sorted(runs.items(), key=lambda item: len(item[1].seeds)):
            others = {seed for other in runs.values() if other is not run for seed in other.seeds}
            if set(run.seeds) & set(seeds) <= others:
                del runs[path]
        return [*runs.values()]

    def _covered(self, root: Path, kept: Path | None = None) -> set[int]:
        """Seeds with a finished run."""
        return {seed for seed, run in self.furthest(root, kept).items() if run.state == "finished"}

    def _writable(self, run: RunFolder, root: Path) -> RunFolder:
        """The run where it can be written to: one kept as evidence is unpacked first."""
        if not (run.path / MANIFEST).exists():
            return run
        first = root / self.group / self.name
        targets = itertools.chain((first,), (first.with_name(f"{self.name}~{number}") for number in itertools.count(2)))
        target = next(folder for folder in targets if not folder.exists())
        print(f"run {self.name}: resuming in {target} from the evidence in {run.path}", flush=True)
        return unpack(run.path, target)

    def _fit(self, root: Path, seeds: Sequence[int], options: Sequence[str], locks: Sequence[IO]) -> None:
        # Relative to the working folder where it lies below: a run's own record should name no folder of one machine.
        config = self.config.relative_to(Path.cwd()) if self.config.is_relative_to(Path.cwd()) else self.config
        words = ["fit", "--config", str(config), "--run.root", str(root)]
        words += ["--run.group", self.group, "--run.name", self.name, "--run.plan", self.digest]
        words += ["--model.seeds", spell_seeds(seeds)]
        words += ["--model.float32", "fp32"]  # on a GPU, too: no seed is rounded more than another
        words += [word for key, value in self.options.items() for word in (f"--{key}", value)]
        words += options
        print(f"run {self.name}: python main.py {shlex.join(words)}", flush=True)
        if code := to_its_end(words, locks):
            raise RunFailed(self, code)
        if not set(seeds) <= self._covered(root):
            raise RunFailed(self, 1)

    def keep(self, root: Path, kept: Path, arrays: Collection[tuple[str, float]]) -> bool:
        # Of runs with the same seeds, kept or not, one is kept; one that lost its checkpoint replaces none that can go on.
        runs = sorted(self.found(root, kept), key=lambda run: run.worth)
        furthest = {run.packed_name: run for run in runs}
        resumable = {run.packed_name for run in runs if run.state == "interrupted" and not run.lies_in(root)}
        new = {
            name: run
            for name, run in furthest.items()
            if run.lies_in(root) and not (run.state == "lost" and name in resumable)
        }
        home = home_of_runs(kept, self.paper, self.scale)
        changed = [pack(run.folder, home / name, run.state == "finished", arrays) for name, run in new.items()]
        return any([*changed, new and self._drop_superseded(kept)])

    def _drop_superseded(self, kept: Path) -> bool:
        """Remove kept runs that did not finish and whose seeds another kept run has taken further."""
        runs = self.found(None, kept)
        further = {run.folder.path: {s for r in runs if r.worth > run.worth for s in r.seeds} for run in runs}
        old = [run for run in runs if run.state != "finished" and set(run.seeds) <= further[run.folder.path]]
        for run in old:
            shutil.rmtree(run.folder.path)
        return bool(old)


def _identity(run: RunFolder) -> str:
    return run.identifier() if (run.path / ID).exists() else str(run.path)
