"""Runs, from the files in their directories, and the directory of a run.

``<paths.outputs>/<name>/<run_id>`` has ``config.yaml``, ``command.txt`` and ``metrics.jsonl`` from its start on,
``results.json``, which is written last, once it is finished, and ``failed.json`` if it has failed. While a process
carries it out, ``lease`` says which one (:mod:`ssl_bench.launch.lease`).

The runs of a grid are listed in ``<paths.outputs>/<name>/grid-<hash>.json``, with the hash of their run_ids. So a run
that never began is known.

A line of ``metrics.jsonl`` is a row: it has ``step``, nearly always ``epoch``, and values by name. Rows of the training
also have ``seconds``, ``images_per_second`` and ``loss``; rows of an evaluation have ``evaluations``, the marks
(:func:`ssl_bench.record.evaluations.mark`) of what made their metrics; the last rows of version 0.4 have none.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import marshal
import math
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from ssl_bench import files
from ssl_bench.config import anchors, identity
from ssl_bench.errors import in_one_line, one_line, printable
from ssl_bench.evaluate.metric import Metric
from ssl_bench.files import exists, of_run, status
from ssl_bench.record import evaluations

CONFIG, RESULTS, METRICS = "config.yaml", "results.json", "metrics.jsonl"
COMMAND, FAILURE, LEASE = "command.txt", "failed.json", "lease"
GRIDS = "grid-*.json"  # files in the folder of an experiment
DIVERGED = "not finite"  # stands in the reason of a failed run that diverged
LEASE_SECONDS = 90.0  # after which a lease expires: longer than a minute, for which NFS may show an old state of a file
RUN_ID = re.compile(f"[0-9a-f]{{{identity.RUN_ID_DIGITS}}}")
SIZE = "batch_size.size"  # what batch_size says, too
NOT_FLAT = {"paths", "tracking", "choices", "steady", "launcher"}  # keys of a configuration that are no settings
DEEPEST = 4  # folders of a results folder above a run: an experiment's name may have slashes
TAIL = 2**16  # bytes at the end of a metrics file that have its last rows
# The values of settings whose keys a configuration may lack.
UNSAID = [(n.partition(".")[0], n, "[]" if v == [] else v) for n, v in identity.NOT_HASHED.items() if "." in n]
READ = {"share", "pretrain", "mean", "std", "resize", "interpolation", "epochs", "knn_k"}  # keys of dataset
UNSAID_OPTIONS = {"positives": "view", "similarity": "cosine"}
# Conditions on which the bits of a result depend and which its run_id does not have: names of its ``environment``, and
# keys of its configuration that say how it is computed.
ENVIRONMENT = ("device", "instructions", "threads", "ranks", "torch", "cuda", "precision", "images")
OF_CPUS, OF_GPUS = ("instructions", "threads"), ("compile_views", "graph", "images_on")
COMPUTED = ("cosines", *OF_GPUS)

Key = tuple[str, str, str | None]  # of a number: its metric, the identity of its evaluation, the hash of its images


class Config(TypedDict, total=False):
    """The keys of a configuration that all readers need."""

    choices: dict
    dataset: dict | None
    evaluate: dict
    epochs: float | None


class Results(TypedDict):
    """The keys of ``results.json`` that readers need."""

    run_id: str
    config: Config
    metrics: dict[str, float]
    seconds: float
    evaluations: list[evaluations.Evaluated]
    environment: NotRequired[dict]
    facts: NotRequired[dict]
    warnings: NotRequired[list[str]]
    units: NotRequired[dict[str, dict[str, Metric]]]


class Progress(NamedTuple):
    """The progress of a training, from its last row; None where the row has no such value.

    Attributes:
        step, epoch: step and epoch of the row.
        seconds: the time that all processes of the run have taken so far.
        speed: images per second.
        loss: the loss of the row.
        watched: the last kNN accuracy on a sample of the training images.
        changed: the time at which the file changed, in seconds of the epoch.
    """

    step: float | None = None
    epoch: float | None = None
    seconds: float | None = None
    speed: float | None = None
    loss: float | None = None
    watched: float | None = None
    changed: float = 0.0


class Owner(NamedTuple):
    """The process that carries out a run, on a machine."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid})"


class Grid(TypedDict):
    """Content of the file of a grid.

    Attributes:
        command: that started the grid.
        single: the command of a single run, without its overrides.
        started: in seconds of the epoch.
        runs: the overrides of each, and its directory from the results folder.
    """

    command: str
    single: str
    started: float
    runs: list[tuple[list[str], str]]


@dataclass(eq=False)
class Run:
    """A run, as its files were when they were read.

    Attributes:
        folder: its directory, a path; None: a grid has still to begin it.
        config: the resolved configuration; if the training goes on to more epochs, that of the longer training.
        results: the content of ``results.json``; empty: there is no such file.
        failure: the reason of its failure, in one line; empty: it has not failed.
        damaged: its files that cannot be read, with the reasons; empty: all can be read.
        began: the time of its last start, in seconds of the epoch.
        overrides: its overrides in its grid; None: it belongs to no grid.
        grid: the command that started its grid; empty: it belongs to no grid.
        listed_in: names of the experiments whose grids list it, also where it was trained under another one.
        owner: the process that carries it out; None: no process does.
        lacks: whether its results lack an evaluation that its configuration requests.
    """

    folder: Any
    config: Mapping[str, Any]
    results: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    damaged: str = ""
    began: float = 0.0
    overrides: Sequence[str] | None = None
    grid: str = ""
    listed_in: set[str] = field(default_factory=set)
    owner: Owner | None = None
    lacks: bool = False

    @property
    def finished(self) -> bool:
        """Whether it has results for as many epochs as its configuration requests."""
        return bool(self.results) and self.config.get("epochs") == self.results["config"].get("epochs")

    @cached_property
    def command(self) -> str:
        """The command that trains it; empty: it was not recorded."""
        return read_command(self.folder) if self.folder else ""

    @cached_property
    def experiment(self) -> str:
        """The name of its experiment: that of the folder, which may have been renamed since the training."""
        if self.folder is None:
            return str(self.settings.get("name") or "default")
        trained, folder = str(self.config.get("name") or ""), os.path.dirname(os.path.abspath(self.folder))
        return trained if trained and folder.endswith(f"/{trained}") else os.path.basename(folder)

    @property
    def seed(self) -> int | None:
        """The seed; None: it has no seed."""
        return self.settings.get("seed") if self.folder is None else self.config.get("seed")

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and the versions, by ``results.json``."""
        return dict(self.results.get("environment", {}))

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions of its numbers by name: those that were recorded and matter on its kind of device."""
        every = {**self.config, **dict.fromkeys(ENVIRONMENT), **self.environment}
        without = OF_CPUS if every["cuda"] else OF_GPUS
        names = (name for name in (*ENVIRONMENT, *COMPUTED) if name not in without)
        return {name: every[name] for name in names if every.get(name) is not None}

    @property
    def warnings(self) -> list[str]:
        """The sentences in which it warns of its result."""
        return list(self.results.get("warnings", []))

    @cached_property
    def progress(self) -> Progress:
        """The progress of its training, from its rows."""
        return Progress() if self.folder is None else progress(self.folder / METRICS, self.finished)

    @property
    def end(self) -> float | None:
        """Epoch at which the training ends. With ``max_steps`` it is known after the first row."""
        epochs, most = self.config.get("epochs"), self.config.get("max_steps")
        if epochs is None or most is None:
            return epochs
        at = self.progress
        return min(epochs, most * at.epoch / at.step) if at.step and at.epoch else None

    @property
    def share(self) -> float:
        """Share of the training that is done, 0 to 1."""
        return min(1.0, (self.progress.epoch or 0.0) / self.end) if self.end else 0.0

    @property
    def seconds(self) -> float | None:
        """The time that all its processes have taken together."""
        return self.results["seconds"] if self.finished else self.progress.seconds

    @cached_property
    def evaluations(self) -> list[evaluations.Entry]:
        """The evaluations of the network after the last epoch, with the numbers; none of an unfinished run."""
        return evaluations.after(self.results["evaluations"] if self.finished else [], self.config.get("epochs"))

    @cached_property
    def numbers(self) -> dict[Key, float]:
        """The numbers of its networks, by metric, evaluation and images."""
        return {(m, e["id"], e.get("images")): value for e in self.evaluations for m, value in e["metrics"].items()}

    @cached_property
    def main(self) -> list[Key]:
        """The keys of its main numbers."""
        names = evaluations.main([metric for metric, *_ in self.numbers], self.results.get("units"))
        return [key for key in self.numbers if key[0] in names]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings by the names that the command line has for them; ``batch_size`` is the size.

        A network that is not trained has only the settings on which its numbers depend. A value that is no number, text
        or truth value is written as JSON.
        """
        if not self.config:
            pairs = (word.lstrip("+").partition("=") for word in self.overrides or ())
            given = {name: _value(text) for name, _, text in pairs}
            return given | ({"batch_size": given[SIZE]} if SIZE in given else {})
        alone = identity.untrained(self.config) and identity.read_alone(self.config) | identity.NOT_IN_RUN_ID
        parts = self.config, self.config.get("choices", {})
        kept = set(alone or (*parts[0], *parts[1])) - {"evaluate"}
        counted, options = ({name: node for name, node in part.items() if name in kept} for part in parts)
        every = {name: value for group, name, value in UNSAID if isinstance(counted.get(group), dict)}
        every |= UNSAID_OPTIONS if "loss" in options and not alone else {}
        every |= flat({**counted, "choices": options}) | {"name": self.experiment}
        return {name: value for name, value in every.items() if not name.endswith(".seed") or value != self.seed}

    @cached_property
    def requested(self) -> set[str]:
        """The names of the settings in its command."""
        words = self.command.replace("'", "").split() if self.command else [*(self.overrides or ())]
        names = (word.partition("=")[0].lstrip("+") for word in words if "=" in word)
        return {"batch_size" if name == SIZE else name for name in names}

    @cached_property
    def recipe(self) -> str:
        """Everything on which its numbers depend, without seed and evaluators, as a text: equal for equal trainings."""
        return self.without(())[1]

    def without(self, names: Sequence[str]) -> tuple[str, str]:
        """Some settings of the recipe, a group with all of its keys, and the rest of the recipe, as two texts."""
        content = identity.hashed(self.config) | {"epochs": self.config.get("epochs"), "seed": None}
        leaves = {n: str(v).rpartition(".")[2] if n.endswith("._target_") else v for n, v in identity.leaves(content)}
        part, rest, inside = dict[str, Any](), dict[str, Any](), tuple(f"{name}." for name in names)
        for name, value in leaves.items():
            if not name.endswith(".seed") or value != self.seed:
                (part if f"{name}.".startswith(inside) else rest)[name] = value
        return identity.text(part), identity.text(rest)

    @cached_property
    def images(self) -> str:
        """The images that it is evaluated on: the data set, its content and size and what is held out.

        Numbers of different images are not compared. The number of training images and how they are read are settings.
        """
        node = identity.hashed({"dataset": self.config.get("dataset")})["dataset"] or {}
        return identity.text({n: v for n, v in node.items() if n not in READ} or self.settings.get("dataset"))


# ---- settings


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration, and the options of its groups, under the names that the command line has."""
    values = dict[str, Any]()
    for name, node in config.items():
        if name not in NOT_FLAT:
            values |= _leaves(name, marshal.dumps(node, 2))
    values |= {group: as_value(option) for group, option in config["choices"].items() if group not in NOT_FLAT}
    return values | ({"batch_size": values[SIZE]} if SIZE in values else {})


@cache
def _leaves(name: str, content: bytes) -> dict[str, Any]:
    """The settings in a node of a configuration, from its bytes: the runs of a grid have most nodes in common."""
    return {n: as_value(v) for n, v in identity.leaves(marshal.loads(content), name) if not n.endswith("._target_")}


def as_value(value: Any) -> Any:
    """A number, a truth value, a printable text or None as it is; anything else as JSON in one line."""
    if value is None or isinstance(value, int | float):
        return value
    return printable(value) if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def _value(text: str) -> Any:
    """The value in an override: a number (64 of ``b64``), a truth value, None, or else the text itself."""
    try:
        return as_value(json.loads(re.sub(r"^b(?=\d+$)", "", text)))
    except ValueError:
        return text


# ---- directories


def walk(outputs: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """The folders of a results folder that are no runs, each with the names of the runs and of the files in it."""
    for above, names, inside in os.walk(outputs, onerror=_name_closed):
        yield above, [*filter(RUN_ID.fullmatch, names)], inside
        deeper = [name for name in names if not RUN_ID.fullmatch(name) and name[0] != "." and name != "wandb"]
        names[:] = deeper if len(Path(above).relative_to(outputs).parts) + 1 < DEEPEST else []


def _name_closed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        files.say_once(f"ssl-bench: {error.filename}: {error.strerror}; runs in there are missing")


def folders(outputs: Path) -> Iterator[Path]:
    """The directories below a results folder that have the name of a run and its configuration or results."""
    for folder in (f"{above}/{name}" for above, names, _ in walk(outputs) for name in names):
        try:
            if not os.path.islink(folder) and any(exists(f"{folder}/{file}") for file in (RESULTS, CONFIG)):
                yield Path(folder)
        except PermissionError as error:
            error.filename = folder
            _name_closed(error)


def find(config: Mapping[str, Any]) -> Path:
    """The directory of a run, which need not exist: its own, or that of the same training in another experiment.

    Of several directories one with results is returned. If the prepared images are not on this machine, a run matches
    whatever its images were.
    """
    usual = identity.run_dir(config)
    if exists(usual / CONFIG) or exists(usual / RESULTS):
        return usual
    recipe, needed, outputs = (
        identity.recipe_id(config),
        identity.content_hashes(config).items(),
        config["paths"]["outputs"],
    )
    identities = ((folder, *_identity(folder.absolute())) for folder in folders(Path(outputs)))
    same = [folder for folder, of, hashes in identities if of == recipe and needed <= hashes.items()]
    return min(same, key=lambda folder: (not _results_of(folder), folder), default=usual)


@cache
def _identity(folder: Path) -> tuple[str, Mapping[str, str]]:
    """The recipe_id of a run and the hashes of its images and plugins, which do not change."""
    config = read(folder).config
    return identity.recipe_id(config), identity.content_hashes(config)


def results_folder(run: Path, name: str) -> Path:
    """The results folder that a run's directory is in now, also if it was written into another one.

    It is the directory itself if neither the name of the experiment nor shared baselines are found above it.
    """
    run, names = run.resolve(), Path(name).parts
    outputs = run.parents[min(len(names), len(run.parents) - 1)]
    there = run.parent.parts[-len(names) :] == names or (outputs / evaluations.BASELINES).is_dir()
    return outputs if there else run


# ---- files of a run


def begin(folder: Path, config: Mapping[str, Any], command: str) -> None:
    """Write the configuration and the command of a run that is known to start or to go on.

    Raises:
        ConfigError: the directory cannot be written.
    """
    with files.writing():
        files.remove(folder / FAILURE)
        files.write_text(folder / COMMAND, command + "\n")
        files.write_text(folder / CONFIG, as_yaml(config))


def begun(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run has started, or was resumed, with this configuration."""
    return _text(folder, CONFIG) == as_yaml(config)


def as_yaml(config: Mapping[str, Any]) -> str:
    """The text of ``config.yaml``."""
    import yaml

    return yaml.safe_dump(dict(config), sort_keys=False)


def _text(folder: Path, name: str) -> str:
    """The text of a file of a run; empty if it cannot be read."""
    decode = partial(bytes.decode, errors="surrogateescape")
    return files.examined(f"{folder}/{name}", parse=decode, of_a_run=True)[0] or ""


def read_command(folder: Path) -> str:
    """The command that trains a run; empty: it was not recorded."""
    return _text(folder, COMMAND).strip()


def read(folder: Path) -> Run:
    """The run in a directory; ``damaged`` names files that cannot be read or have values of a wrong type."""
    try:
        run = _read(folder)
        run.settings, run.numbers, float(run.end or 0)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        run = Run(folder, {}, damaged=f"it has a value of another kind ({in_one_line(error)})")
    return run


def _read(folder: Path) -> Run:
    """The run in a directory.

    Reading JSON takes a twentieth of the time of YAML: ``config.yaml`` of a finished run is read only if the run was
    started again.
    """
    content, wrong = files.examined(f"{folder}/{RESULTS}", Results, of_a_run=True)
    started, ended = (getattr(status(f"{folder}/{name}"), "st_mtime", 0.0) for name in (CONFIG, RESULTS))
    damaged = {RESULTS: wrong or "cannot be read" * (content is None and ended > 0)}
    config: Mapping[str, Any] = content["config"] if content else {}
    run = Run(folder, config, content or {}, began=started or ended)
    if content is None or started > ended:
        newest, wrong = files.examined(folder / CONFIG, dict, anchors.as_json, of_a_run=True)
        wrong = wrong or "cannot be read" * (not newest)
        if not wrong and (run_id := identity.run_id(newest)) != folder.name:  # the name of its folder is its id
            wrong = f"it is that of run {run_id}"
        damaged[CONFIG] = wrong
        if not wrong:
            longer = (newest.get("epochs") or 0) > (config.get("epochs") or 0)
            run.config = newest if longer or not config else config
            run.lacks = bool(content and evaluations.missing(content["evaluations"], newest))
    if not run.finished:
        failure, _ = files.examined(folder / FAILURE, dict, of_a_run=True)
        run.failure = one_line(str(failure.get("reason"))) if failure else ""
    run.damaged = "; ".join(files.damage(name, why) for name, why in damaged.items() if why)
    return run


def read_results(folder: Path) -> Any:
    """The results of the run in ``folder``; None without any, or if the file is damaged or foreign, as is printed.

    A file is damaged if it is no JSON or lacks a key that readers need.
    """
    return files.read_json(folder / RESULTS, Results, of_a_run=True)


def is_complete(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the run in ``folder`` has the epochs that ``config`` requests, or more, and all of its evaluations."""
    results = _results_of(folder)
    longer = results and (results["config"].get("epochs") or 0) >= (config.get("epochs") or 0)
    return bool(longer) and not evaluations.missing(results["evaluations"], config)


def _results_of(folder: Path) -> dict[str, Any]:
    """The results in the directory of a run; an empty mapping if they have the run_id of another run."""
    results = read_results(folder) or {}
    return results if results.get("run_id") == folder.name else {}


def owner(folder: Path) -> Owner | None:
    """The process that carries out a run, by a lease that has not expired as far as the machines' clocks are equal."""
    lease = status(f"{folder}/{LEASE}")
    if lease is None or time.time() - lease.st_mtime > LEASE_SECONDS:
        return None
    from filelock import SoftFileLease

    record = SoftFileLease(folder / LEASE).owner
    return Owner(record.hostname.partition("?")[0], record.pid) if record else Owner("unknown", 0)


# ---- grids


def write_grid(grid: Grid, experiments: Sequence[Path]) -> None:
    """Write a grid into the folders of the experiments that its runs belong to, which are given for each run.

    Raises:
        ConfigError: one cannot be written.
    """
    for experiment in dict.fromkeys(experiments):
        members = [run for run, of in zip(grid["runs"], experiments, strict=True) if of == experiment]
        names = "\n".join(sorted(os.path.basename(folder) for _, folder in members))
        path = experiment / GRIDS.replace("*", hashlib.sha256(names.encode()).hexdigest()[:12])
        with files.writing():
            files.make_folder(experiment)
            files.write_json(path, grid | {"runs": members})


def read_grids(outputs: Path) -> list[tuple[Run, str]]:
    """The runs of all grids below a results folder, as runs that have still to begin, and their directories.

    Those of the grid that began last are at the end. Of a directory there are the last two names, which a copy of the
    results folder has, too.
    """
    paths = [Path(above, name) for above, _, names in walk(outputs) for name in fnmatch.filter(names, GRIDS)]
    grids = [(path.parent, grid) for path in paths if (grid := files.read_json(path, Grid, of_a_run=True))]
    listed = list[tuple[Run, str]]()
    for folder, grid in sorted(grids, key=lambda pair: pair[1]["started"]):
        experiment = {folder.relative_to(outputs).as_posix()}
        for overrides, path in grid["runs"]:
            run = Run(None, {}, overrides=overrides, grid=grid["command"], listed_in=experiment)
            run.command = f"{grid['single']} {shlex.join(overrides)}"
            listed.append((run, "/".join(Path(path).parts[-2:])))
    return listed


# ---- rows of metrics.jsonl


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none without a file. A message says how many lines are no rows, and left out."""
    return files.read_json_lines(path, lambda row: "" if _is_row(row) else "no row")


def _is_row(row: Any) -> bool:
    """Whether a value has a step and, if any, an epoch."""
    return finite(row, "step") is not None and type(row.get("epoch", 0)) in (int, float)


def parse_row(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None if there is none, as after a crash that cut it short."""
    try:
        row: Any = files.parse_json(line)
    except ValueError:
        return None
    return row if _is_row(row) else None


def progress(path: Path, ended: bool = False) -> Progress:
    """The progress of a training, from the end of its file, which may grow meanwhile; not ``watched`` if it ended."""

    try:
        lines = files.read_bytes(of_run(path), math.inf)[-TAIL:].split(b"\n")[:-1]
    except OSError:
        return Progress()
    of_training = (row for line in reversed(lines) if (row := parse_row(line)) is not None and "seconds" in row)
    last = next(of_training, {})
    watching = (finite(row, "watch/knn_top1") for row in ((last, *of_training) if not ended else ()))
    watched = next((value for value in watching if value is not None), None)
    values = (finite(last, name) for name in ("step", "epoch", "seconds", "images_per_second", "loss"))
    step, epoch, seconds, speed, loss = values
    return Progress(step, epoch, seconds, speed, loss, watched, getattr(status(path), "st_mtime", 0.0))


def finite(node: Any, key: str) -> float | None:
    """The finite number at ``node[key]``; None if there is anything else, or ``node`` is not a mapping."""
    value: Any = node.get(key) if isinstance(node, dict) else None
    return value if type(value) in (int, float) and math.isfinite(value) else None
