"""The runs and grids under a results folder, and ``<outputs>/.index.sqlite``, which makes finding them again fast.

The index is only a cache. It keeps what was read from the files of each run and grid, with their marks; what has
another mark is read again. Of a finished run only the directory is looked at. The index is never locked, which file
systems on a network do not do reliably: a writer makes a new file and renames it, the last one wins. An index that is
damaged, or of another version, is made again; in a folder that cannot be written there is none.
"""

import contextlib
import gc
import json
import os
import socket
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.launch.outcome import State
from ssl_bench.status.configs import Configs
from ssl_bench.status.entries import CONFIG, FILES, RESULTS, RunFolder
from ssl_bench.status.follow import LARGEST, Mark, find_mark
from ssl_bench.status.grids import SETTLED, GridFolder, Record, read_grid

NAME, VERSION = ".index.sqlite", 1
LARGEST_INDEX = 2**30  # bytes: a million runs have fewer
FEW, SHARE = 64, 0.01  # the file is not written for fewer changes, nor for a smaller share of the runs
DAMAGED = (sqlite3.Error, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

NUMBER, TEXT = (int, float, type(None)), (str, type(None))
PLAIN: dict[str, Any] = {  # attributes of a run that are stored as they are, and their types
    **{"path": str, "began": NUMBER, "command": TEXT, "seed": TEXT, "epochs": NUMBER, "max_steps": NUMBER},
    **{"batch_size": NUMBER, "span": (int, float), "done": int, "seconds": NUMBER, "failure": TEXT, "run_id": TEXT},
    **{"best_json": str, "final_json": str, "results": TEXT},
}
RUN: dict[str, Any] = {  # the columns of a run: what is no number or text is JSON
    **{"mtime": int, "size": int, "inode": int, "mark_json": TEXT, "config": int},
    **{"step": NUMBER, "epoch": NUMBER, "elapsed": NUMBER, "speed": NUMBER},
    **PLAIN,
}
TABLES: dict[str, Sequence[str]] = {
    "settings": ("path", "value"),
    "configs": ("text",),
    "runs": list(RUN),
    "grids": ("path", "mark", "content", "settled", "records"),
}
SEAL = slice(60, 64)  # place of the checksum in the header of the file
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
        self._stored_grids: list[Any] | None = None  # rows of the file, until they are needed
        self._configs = Configs()
        self._sweeps: list[str] = []  # folders of grids
        self.unreadable: list[str] = []  # folders and files that this user may not read
        with no_collection(), contextlib.suppress(*DAMAGED):
            self._load()
        self._in_file = {*self._runs}

    def runs(self, now: float) -> list[RunFolder]:
        """The runs, sorted by parent directory, then by start; also directories with ``results.json`` only.

        Args:
            now: in seconds of the epoch.
        """
        found, self._sweeps, self.unreadable = dict[str, RunFolder](), list[str](), list[str]()
        mark = find_mark(self._root)
        folders = [""] if mark and self._search("", mark, found, now) else []
        while folders:
            folder = folders.pop()
            start = f"{folder}/" if folder else ""
            try:
                with os.scandir(f"{self._root}/{folder}") as inside:
                    entries = [entry for entry in inside if entry.is_dir(follow_symlinks=False)]
            except OSError as error:
                self.unreadable += [f"{self._root}/{folder}"] if isinstance(error, PermissionError) else []
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
                mark = status.st_mtime_ns, status.st_size, status.st_ino & LARGEST
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
        is_run = run.update(self._configs, mark)
        for name in (CONFIG, RESULTS) if not (is_run and run.done) else ():
            file = f"{run.folder}/{name}"
            if run.marks.get(name) and not os.access(file, os.R_OK, effective_ids=True):
                self.unreadable.append(file)
        if not is_run:
            return True
        found[path] = run
        run.fixed = run.done and run.began is not None and now - mark[0] / 1e9 > SETTLED
        return run.began is None

    def grids(self, now: float) -> list[GridFolder]:
        """The grids beside the runs that were found last, sorted by start; ``now`` is in seconds of the epoch."""
        if self._stored_grids is not None:
            with contextlib.suppress(*DAMAGED):
                self._grids = dict(_grid_of_row(self._root, row) for row in self._stored_grids)
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
        grids = self._stored_grids or [_row_of_grid(grid, mark, now) for mark, grid in self._grids.values()]
        tables: dict[str, Iterable[Sequence[Any]]] = {
            "settings": [(_json(path), value) for path, value in self._configs.settings],
            "configs": [(config.text,) for config in configs.values()],
            "runs": [_row_of_run(run, numbers[run.config.key]) for run in runs],
            "grids": grids,
        }
        with contextlib.suppress(*DAMAGED):
            _replace(self._file, tables)
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
        content = files.read_bytes(self._file, LARGEST_INDEX)
        if content[SEAL] != _seal(content):
            raise ValueError(f"{self._file} is of another version or damaged")
        with contextlib.closing(sqlite3.connect(f"{self._file.absolute().as_uri()}?immutable=1", uri=True)) as file:
            settings, texts, rows, grids = (file.execute(f"select * from {table}").fetchall() for table in TABLES)
        configs = Configs([(tuple(json.loads(path)), value) for path, value in settings], [text for (text,) in texts])
        found = _runs_of_rows(self._root, configs, rows) if rows else []
        self._runs, self._configs, self._stored_grids = {run.path: run for run in found}, configs, grids


def _start(run: RunFolder) -> tuple[float, str]:
    return run.began or 0.0, run.path


def _row_of_run(run: RunFolder, config: int) -> list[Any]:
    metrics, run.final_json = run.metrics, _json(run.final)
    run.best_json = _json(metrics.best)
    marks = None if run.done and run.began is not None else _json([run.marks[name] for name in FILES])
    last = metrics.step, metrics.epoch, metrics.seconds, metrics.speed
    return [*(run.mark or ()), marks, config, *last, *(getattr(run, name) for name in PLAIN)]


def _runs_of_rows(outputs: str, configs: Configs, rows: Sequence[Sequence[Any]]) -> list[RunFolder]:
    """Make the runs again; the columns of a row are checked one by one, which is quick."""
    for kind, column in zip(RUN.values(), zip(*rows, strict=True), strict=True):
        if not all(issubclass(found, kind) for found in {*map(type, column)}):
            raise TypeError(f"a column of {kind} has other types")
    runs, known, plain, place = [], configs.known, len(RUN) - len(PLAIN), [*RUN].index("final_json")
    texts = [row[place] for row in rows]
    finals = json.loads(f"[{','.join(texts)}]")  # at once: several times as fast as one by one
    if len(finals) != len(rows) or not all(type(final) is dict for final in finals):
        raise ValueError("accuracies cannot be read")
    for row, final in zip(rows, finals, strict=True):
        run = RunFolder.restored(outputs, zip(PLAIN, row[plain:], strict=True))
        mtime, size, inode, marks, config = row[:5]
        run.mark, run.config, run.last = (mtime, size, inode), known[config], tuple(row[5:plain])
        run.marks, run.fixed, run.stored, run.final = {}, marks is None, True, final
        if marks is not None:
            found = [mark and tuple(mark) for mark in json.loads(marks)]
            run.marks = dict(zip(FILES, found, strict=True))
            _ = run.metrics  # as they were when the marks were
        runs.append(run)
    return runs


def _row_of_grid(grid: GridFolder, mark: Mark | None, now: float) -> list[Any]:
    records = [[number, *record] for number, record in grid.records.items() if now - record.when > SETTLED]
    return [grid.path, _json(mark), _json(grid.content), grid.settled, _json(records)]


def _grid_of_row(outputs: str, row: Sequence[Any]) -> tuple[str, tuple[Mark | None, GridFolder]]:
    path, mark, content, settled, records = row
    grid = GridFolder(outputs, path, json.loads(content))
    made = {
        number: Record(tuple(file), STATES[state], code, reason, folder)
        for number, file, state, code, reason, folder in json.loads(records)
    }
    grid.restore(made, settled)
    return path, (tuple(json.loads(mark)), grid)


def _seal(content: bytes) -> bytes:
    """Checksum of an SQLite file. It stands in the header, where SQLite has a place for an application's number."""
    return zlib.crc32(content[100:], VERSION).to_bytes(4, "big")


def _replace(path: Path, tables: Mapping[str, Iterable[Sequence[Any]]]) -> None:
    """Replace the file; unlike ``files.write`` without waiting for the disk, and for processes of several machines."""
    temporary = Path(f"{path}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}")
    try:
        with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as file:
            file.execute("pragma journal_mode = off")
            file.execute("pragma synchronous = off")
            file.execute("begin")
            for table, columns in TABLES.items():
                file.execute(f"create table {table} ({', '.join(columns)})")
                places = ", ".join("?" * len(columns))
                file.executemany(f"insert into {table} values ({places})", tables[table])
            file.execute("commit")
        with open(temporary, "r+b") as content:
            seal = _seal(content.read())
            content.seek(SEAL.start)
            content.write(seal)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
