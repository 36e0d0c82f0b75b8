"""The runs and grids under a results folder, and ``<outputs>/.index``, which makes finding them again fast.

The index is only a cache. It keeps what was read from the files of each run and grid, with their marks; what has
another mark is read again. Of a finished run only the directory is looked at. The index has no lock: a writer makes a
new file and renames it, the last one wins. An index that is damaged, or of another version, is made again; in a folder
that cannot be written there is none.

A line of the file is JSON. The lines are: version and checksum; the settings of all configurations; the runs; the
grids; then the configurations, one a line, and the metrics of each run, one a line.
"""

import contextlib
import gc
import json
import os
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_bench.launch.outcome import State
from ssl_bench.status.configs import Configs
from ssl_bench.status.entries import FILES, METRICS, RunFolder
from ssl_bench.status.follow import Mark, MetricsFile, find_mark
from ssl_bench.status.grids import SETTLED, GridFolder, Record, read_grid

NAME, VERSION = ".index", 1
FEW, SHARE = 64, 0.01  # the file is not written for fewer changes, nor for a smaller share of the runs
DAMAGED = (OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

NUMBER, TEXT = (int, float, type(None)), (str, type(None))
PLAIN: dict[str, Any] = {  # attributes of a run that are stored as they are, and their types
    **{"path": str, "began": NUMBER, "command": TEXT, "seed": TEXT, "epochs": NUMBER, "max_steps": NUMBER},
    **{"batch_size": NUMBER, "span": (int, float), "done": bool, "seconds": NUMBER, "final": dict, "failure": TEXT},
    **{"run_id": TEXT},
}
KINDS: tuple[Any, ...] = (NUMBER, NUMBER, NUMBER, NUMBER, dict, *PLAIN.values())  # the last row's and the others
STATES = {state.value: state for state in State}


@dataclass(frozen=True)
class Finished:
    """A run with ``results.json``.

    Attributes:
        run_id: as in ``results.json``.
        config_key: equal for runs that differ in their seed only.
    """

    run_id: str
    config_key: int
    _run: RunFolder

    @property
    def folder(self) -> Path:
        """Its directory."""
        return self._run.folder

    @property
    def seed(self) -> int | None:
        """Its seed, if that is an integer."""
        seed = json.loads(self._run.seed or "null")
        return seed if isinstance(seed, int) else None

    @property
    def config(self) -> Mapping[str, Any]:
        """Its configuration, with null instead of the seed: one object for all runs with the same ``config_key``."""
        return self._run.config.seedless

    @property
    def metrics(self) -> Mapping[str, float]:
        """The metrics in ``results.json``."""
        metrics: dict[str, float] = json.loads(self._run.results or "{}")
        return metrics


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Stop the garbage collector, which would look at all new objects several times, and find nothing to free."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def finished(outputs: Path) -> list[Finished]:
    """Every run with a ``results.json`` below a folder, each run_id once, sorted by directory.

    A run needs no ``config.yaml``. The directories inside the directory of a run are not searched.
    """
    with no_collection():
        index, now = Index(outputs), time.time()
        found = [run for run in index.runs(now) if run.run_id is not None]
        index.save(now)
        first = dict[str, RunFolder]()
        for run in sorted(found, key=lambda run: run.path.split("/")):
            first.setdefault(str(run.run_id), run)
        return [Finished(run_id, run.config.key, run) for run_id, run in first.items()]


class Index:
    """Finds the runs and grids, of other machines too. It reads only what changed since it, or the file, was made.

    Args:
        outputs: the results folder.
    """

    def __init__(self, outputs: Path) -> None:
        self._root, self._file = str(outputs), outputs / NAME
        self._runs: dict[str, RunFolder] = {}
        self._grids: dict[str, tuple[Mark | None, GridFolder]] = {}  # with the mark of grid.json
        self._stored_grids: str | None = None  # line of the file, until it is needed
        self._configs = Configs()
        self._sweeps: list[str] = []  # folders of grids
        with no_collection(), contextlib.suppress(*DAMAGED):
            self._load()
        self._in_file = {*self._runs}

    def runs(self, now: float) -> list[RunFolder]:
        """The runs, sorted by parent directory, then by start; also directories with ``results.json`` only.

        Args:
            now: in seconds of the epoch.
        """
        found, self._sweeps = dict[str, RunFolder](), list[str]()
        mark = find_mark(self._root)
        folders = [""] if mark and self._search("", mark, found, now) else []
        while folders:
            folder = folders.pop()
            start = f"{folder}/" if folder else ""
            try:
                with os.scandir(f"{self._root}/{folder}") as inside:
                    entries = [entry for entry in inside if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
            for entry in entries:
                path = start + entry.name
                if entry.name == ".sweeps":
                    self._sweeps.append(path)
                if entry.name[0] == "." or entry.name == "wandb":
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                mark = status.st_mtime_ns, status.st_size, status.st_ino
                known = self._runs.get(path)
                if known is not None and known.fixed and known.mark == mark:
                    found[path] = known
                elif self._search(path, mark, found, now):
                    folders.append(path)
        self._runs = found
        parents: dict[str, list[RunFolder]] = {}
        for run in found.values():
            parents.setdefault(run.parent, []).append(run)
        by_start = (sorted(parents[parent], key=_start) for parent in sorted(parents, key=lambda path: path.split("/")))
        return [run for runs in by_start for run in runs]

    def _search(self, path: str, mark: Mark, found: dict[str, RunFolder], now: float) -> bool:
        """Add the run in a folder to ``found``, if there is one; return whether there may be runs inside the folder."""
        run = self._runs.get(path) or RunFolder(self._root, path)
        if not run.update(self._configs, mark):
            return True
        found[path] = run
        run.fixed = run.done and run.began is not None and now - mark[0] / 1e9 > SETTLED
        return run.began is None

    def grids(self, now: float) -> list[GridFolder]:
        """The grids beside the runs that were found last, sorted by start; ``now`` is in seconds of the epoch."""
        if self._stored_grids is not None:
            with contextlib.suppress(*DAMAGED):
                self._grids = dict(_grid_of_row(self._root, row) for row in json.loads(self._stored_grids))
            self._stored_grids = None
        found = dict[str, tuple[Mark | None, GridFolder]]()
        for sweeps in self._sweeps:
            try:
                paths = [f"{sweeps}/{start}" for start in os.listdir(f"{self._root}/{sweeps}")]
            except OSError:
                continue
            for path in paths:
                mark = find_mark(f"{self._root}/{path}/grid.json")
                known, grid = self._grids.get(path, (None, None))
                if known != mark or grid is None:
                    grid = read_grid(self._root, path) if mark else None
                if grid is not None:
                    grid.update(now)
                    found[path] = mark, grid
        self._grids = found
        return sorted((grid for _, grid in found.values()), key=lambda grid: grid.started)

    def save(self, now: float) -> None:
        """Write the file, if enough changed to make that worth it; ``now`` is in seconds of the epoch."""
        runs = [run for run in self._runs.values() if run.stored or now - run.changed > SETTLED]
        changes = sum(not run.stored and run.owner is None for run in runs) + len(self._in_file - self._runs.keys())
        changes += sum(grid.unsaved for _, grid in self._grids.values())
        if changes <= max(FEW, SHARE * len(runs)):
            return
        configs = {run.config.key: run.config for run in runs}
        numbers = {key: number for number, key in enumerate(configs)}
        grids = self._stored_grids or _json([_row_of_grid(grid, mark, now) for mark, grid in self._grids.values()])
        lines = [
            _json(self._configs.settings),
            _json([_row_of_run(run, numbers[run.config.key]) for run in runs]),
            grids,
        ]
        lines += [config.text for config in configs.values()]
        lines += [run.results or "" for run in runs]
        body = "\n".join(lines).encode()
        with contextlib.suppress(OSError):
            _replace(self._file, _seal(body) + b"\n" + body)
        for run in runs:
            run.stored = True
        for _, grid in self._grids.values():
            grid.unsaved = 0
        self._in_file = {run.path for run in runs}

    def _load(self) -> None:
        """Read the file.

        Raises:
            DAMAGED: there is none of this version, or it is damaged.
        """
        seal, _, body = self._file.read_bytes().partition(b"\n")
        if seal != _seal(body):
            raise ValueError(f"{self._file} is of another version or damaged")
        settings, runs, grids, *texts = body.decode().split("\n")
        rows: list[Any] = json.loads(runs)
        count = len(texts) - len(rows)
        configs = Configs([(tuple(path), value) for path, value in json.loads(settings)], texts[:count])
        found = _runs_of_rows(self._root, configs, rows, texts[count:]) if rows else []
        self._runs, self._configs, self._stored_grids = {run.path: run for run in found}, configs, grids


def _start(run: RunFolder) -> tuple[float, str]:
    return run.began or 0.0, run.path


def _row_of_run(run: RunFolder, config: int) -> list[Any]:
    metrics, plain = run.metrics, [getattr(run, name) for name in PLAIN]
    last = [metrics.step, metrics.epoch, metrics.seconds, metrics.speed, metrics.best]
    marks = None if run.done and run.began is not None else [run.marks[name] for name in FILES]
    return [*(run.mark or ()), marks, config, *last, *plain]


def _runs_of_rows(outputs: str, configs: Configs, rows: list[Any], results: list[str]) -> list[RunFolder]:
    """Make the runs again; the columns of a row are checked one by one, which is quick."""
    columns = list(zip(*rows, strict=True))
    for kind, column in zip((int, int, int, (list, type(None)), int, *KINDS), columns, strict=True):
        if not all(issubclass(found, kind) for found in {*map(type, column)}):
            raise TypeError(f"a column of {kind} has other types")
    runs = []
    for mark, marks, config, last, plain, text in zip(
        zip(*columns[:3], strict=True),
        columns[3],
        columns[4],
        zip(*columns[5:10], strict=True),
        zip(*columns[10:], strict=True),
        results,
        strict=True,
    ):
        run = RunFolder(outputs, plain[0])
        run.__dict__.update(zip(PLAIN, plain, strict=True))
        run.mark, run.fixed, run.stored = mark, marks is None, True
        if marks:
            run.marks = {name: mark and tuple(mark) for name, mark in zip(FILES, marks, strict=True)}
        run.config, run.results = configs.known[config], text or None
        run.metrics = MetricsFile.restored_from(run.span, last, run.marks.get(METRICS))
        runs.append(run)
    return runs


def _row_of_grid(grid: GridFolder, mark: Mark | None, now: float) -> list[Any]:
    records = [[number, *record] for number, record in grid.records.items() if now - record.when > SETTLED]
    return [grid.path, mark, grid.content, grid.settled, records]


def _grid_of_row(outputs: str, row: Any) -> tuple[str, tuple[Mark | None, GridFolder]]:
    path, mark, content, settled, records = row
    grid = GridFolder(outputs, path, content)
    made = {n: Record(tuple(m), STATES[state], code, reason, folder) for n, m, state, code, reason, folder in records}
    grid.restore(made, settled)
    return path, (tuple(mark), grid)


def _seal(body: bytes) -> bytes:
    """The first line of the file: version, length and checksum of the rest."""
    return f"ssl-bench index {VERSION} {len(body)} {zlib.crc32(body)}".encode()


def _replace(path: Path, content: bytes) -> None:
    """Replace a file; unlike ``files.write`` without waiting for the disk, and for processes of several machines."""
    temporary = f"{path}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
