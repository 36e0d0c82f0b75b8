"""Kill small runs at random moments, start them again, and compare them with a run that was never disturbed.

    python scripts/kill_runs.py --kills 100

A run of one or two ranks is hit by SIGKILL, SIGTERM, SIGINT, SIGSTOP (SIGCONT follows a second later) or a full disk
(a small tmpfs, for which one must be root), several times in a row, and is then started until it ends. It must end
with the same checkpoint, the same losses and the same results, bit for bit, with the same files and no process left.
Each end must have the exit code of its signal and must print no traceback. The moments are found by watching the
run's files. The table at the end counts the hits by what the run was doing. Exit code 1: something was not as it must.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

RUN = ["backbone.width=4", "head.out=16", "optimizer=sgd", "tracking=off", "log_every=1", "checkpoint.every=1"]
RUN += ["epochs=2", "evaluate=[knn,linear]", "evaluate.baselines=[init]", "evaluate.every=1"]
RUN += ["evaluate.linear.epochs=5", "evaluate.linear.lrs=[0.1]"]
KILL, TERM, INT, STOP, DISK = "SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP", "full disk"
KINDS = (KILL, TERM, INT, STOP, DISK)
START, TRAINING, CHECKPOINT, EVALUATION, RESULTS, END = (
    "start",
    "training",
    "checkpoint",
    "evaluation",
    "results",
    "end",
)
AIMS = (START, TRAINING, CHECKPOINT, EVALUATION, RESULTS)
CODES: dict[str, set[int]] = {STOP: {0}, DISK: {0, 1, 2}}  # of the others it depends on the signal
LOOK = 0.0002  # seconds between two looks at the files
LIMIT = 60.0  # seconds within which a run must end
SETTLE = 30.0  # seconds within which the other processes of a run must end
PRELOADED = ["ssl_bench.launch.ranks", "torch._dynamo", "scipy.stats", "ssl_bench.train", "sklearn.datasets"]
PRELOADED += ["matplotlib.figure", "wandb"]


class Run:
    """A run in a session of its own, forked from a server that has imported torch.

    Args:
        outputs: its results folder.
        devices: number of ranks.
    """

    def __init__(self, outputs: Path, devices: int) -> None:
        self.outputs = outputs
        descriptor, self._printed = tempfile.mkstemp(".txt", "kill_runs")
        os.close(descriptor)
        arguments = ["train", *RUN, f"devices={devices}", f"paths.outputs={outputs}"]
        self.rows_before, self._log_before = self.rows(), self._size("train.log")
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_train, args=(arguments, self._printed)
        )
        self._process.start()
        self.pid = self._process.pid or 0
        with contextlib.suppress(ProcessLookupError):
            while os.getsid(self.pid) != self.pid:
                time.sleep(LOOK)

    # ---- its processes

    @property
    def alive(self) -> bool:
        return self._process.exitcode is None

    def processes(self) -> list[int]:
        """PIDs of the session: the run's first process, its ranks, and their helpers."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid and fields[0] not in "ZX":
                    found.append(int(folder.name))
        return found

    def ranks(self) -> list[int]:
        """PIDs of the ranks that are processes of their own: the children of the run's server."""
        return [pid for pid in self.processes() if pid != self.pid and _parent(pid) not in (self.pid, 0)]

    def join(self) -> None:
        """Wait for the end of the first process."""
        self._process.join(LIMIT)

    def end(self) -> tuple[int, str]:
        """Wait for the end of all processes; return the exit code and what was printed.

        Raises:
            TimeoutError: a process did not end.
        """
        self.join()
        deadline = time.monotonic() + SETTLE
        while (left := self.processes()) and not self.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.join()
        printed, code = Path(self._printed).read_text(errors="replace"), self._process.exitcode
        Path(self._printed).unlink()
        if left:
            raise TimeoutError(f"processes {left} did not end:\n{printed}")
        assert code is not None
        return code, printed

    # ---- its files

    @property
    def folder(self) -> Path:
        """The run's directory; one that does not exist before the run has made it."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.outputs / "default"):
                return self.outputs / "default" / name
        return self.outputs / "default" / "none"

    def rows(self) -> int:
        """Rows of losses in ``metrics.jsonl``."""
        with contextlib.suppress(OSError):
            return (self.folder / "metrics.jsonl").read_bytes().count(b'"loss"')
        return 0

    def _size(self, name: str) -> int:
        with contextlib.suppress(OSError):
            return (self.folder / name).stat().st_size
        return 0

    def doing(self, last: int) -> str:
        """Tell by its files what the run is doing; ``last`` is the number of rows of a whole run."""
        names, checkpoints = _names(self.folder), _names(self.folder / "checkpoints")
        if any(name.startswith((".next.pt", "next.pt")) for name in checkpoints):
            return CHECKPOINT
        if any(name.startswith(".results.json") for name in names):
            return RESULTS
        if "results.json" in names:
            return END
        rows = self.rows()
        if self._size("train.log") == self._log_before and rows == self.rows_before:
            return START
        return EVALUATION if rows == last else TRAINING


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _parent(pid: int) -> int:
    """The PID of the parent of a process; 0 if that has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _train(arguments: Sequence[str], printed: str) -> None:
    from ssl_bench import cli

    with open(printed, "w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background of a shell
    sys.argv = ["ssl-bench", *arguments]
    gc.freeze()
    with patch("matplotlib.figure.Figure.savefig", lambda figure, file, **settings: file.write(b"no picture")):
        os.setsid()  # for which Run waits
        cli.main()


# ---- what a run must end with


@dataclass(frozen=True)
class End:
    """The end of a run that was not disturbed, with the times of its parts in seconds."""

    checkpoint: dict[str, Any]
    rows: list[Any]
    metrics: dict[str, float]
    names: list[str]
    whole: float = 0.0
    starting: float = 0.0
    evaluating: float = 0.0

    @classmethod
    def read(cls, outputs: Path, **times: float) -> "End":
        (folder,) = (path.parent for path in outputs.glob("*/*/results.json"))
        checkpoint = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
        del checkpoint["seconds"]
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        timeless = [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in rows]
        metrics = json.loads((folder / "results.json").read_text())["metrics"]
        names = sorted(str(path.relative_to(outputs)) for path in outputs.rglob("*") if path.name != "previous.pt")
        return cls(checkpoint, timeless, metrics, names, **times)

    @property
    def losses(self) -> list[float]:
        """Of the steps."""
        return [row["loss"] for row in self.rows if "loss" in row]

    def lost(self, other: "End") -> list[str]:
        """List in words the results that another run has lost or computed differently."""
        equal = {
            "another checkpoint": same(self.checkpoint, other.checkpoint),
            "other losses": self.losses == other.losses,
            "other results": self.metrics == other.metrics,
        }
        return [name for name, yes in equal.items() if not yes]

    def untidy(self, other: "End") -> list[str]:
        """List in words the files and rows that another run has too many or too few of."""
        words = [f"{len(other.rows)} rows of metrics, not {len(self.rows)}"] if self.rows != other.rows else []
        words += [f"{name} is missing" for name in self.names if name not in other.names]
        return words + [f"{name} is left" for name in other.names if name not in self.names]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def undisturbed(outputs: Path, devices: int) -> End:
    """Train once, and measure when each part begins."""
    began, run = time.monotonic(), Run(outputs, devices)
    first = last = began
    rows = 0
    while run.alive:
        time.sleep(0.001)
        if (now := run.rows()) != rows:
            last = time.monotonic()
            first, rows = (last if rows == 0 else first), now
    code, printed = run.end()
    assert code == 0, printed
    whole = time.monotonic() - began
    return End.read(outputs, whole=whole, starting=first - began, evaluating=began + whole - last)


# ---- kills


@dataclass(frozen=True)
class Hit:
    """A kill, what the run was doing, and whom it hit: the first process, a rank, or all."""

    kind: str
    doing: str
    whom: str


class Trial:
    """A run that is hit several times, then started until it ends.

    Args:
        outputs: its results folder.
        devices: number of ranks.
        reference: the end of an undisturbed run.
        chance: decides when and whom to hit.

    Attributes:
        hits: all that have hit a living run.
        lost: what is not equal at the end, in words.
        faults: what else was not as it must be, in words.
    """

    def __init__(self, outputs: Path, devices: int, reference: End, chance: random.Random) -> None:
        self.outputs, self.devices, self.reference, self.chance = outputs, devices, reference, chance
        self.last = sum("loss" in row for row in reference.rows)
        self.hits: list[Hit] = []
        self.lost: list[str] = []
        self.faults: list[str] = []

    def hit(self, kind: str, aim: str) -> bool:
        """Start the run, hit it at the moment ``aim``, wait for its end; return whether it must be started again."""
        run = Run(self.outputs, self.devices)
        if self._wait(run, aim):
            doing, whom = run.doing(self.last), self._strike(run, kind)
            if whom:
                self.hits.append(Hit(kind, doing, whom))
                return self._ended(run, kind, whom)
        return self._ended(run)

    def finish(self) -> None:
        """Start the run until it ends, and compare it."""
        for _ in range(3):
            if not self._ended(Run(self.outputs, self.devices)):
                break
        try:
            end = End.read(self.outputs)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            self.lost.append(f"it did not end: {error}")
            return
        self.lost = self.reference.lost(end)
        self.faults += self.reference.untidy(end)

    def _wait(self, run: Run, aim: str) -> bool:
        """Wait for the moment; return whether the run is still alive."""
        reference, rows = self.reference, self.chance.randint(run.rows_before, self.last)
        if aim == START:
            conditions: list[Callable[[], bool]] = []
            delay = reference.starting
        elif aim == TRAINING:
            conditions, delay = [lambda: run.doing(self.last) != START and run.rows() >= rows], 0.01
        elif aim == CHECKPOINT:
            conditions, delay = [lambda: run.rows() >= min(rows, self.last - 1)], 0.002
            conditions.append(lambda: run.doing(self.last) == CHECKPOINT)
        elif aim == EVALUATION:
            conditions, delay = [lambda: run.doing(self.last) == EVALUATION], reference.evaluating
        else:
            conditions, delay = [lambda: run.doing(self.last) in (RESULTS, END)], 0.0
        for condition in conditions:
            while not condition():
                if not run.alive:
                    return False
                time.sleep(LOOK if aim in (CHECKPOINT, RESULTS) else 10 * LOOK)
        time.sleep(self.chance.uniform(0, delay) * self.chance.choice((0, 1, 1)))
        return run.alive

    def _strike(self, run: Run, kind: str) -> str:
        """Hit the run; return whom, or an empty text if the process had ended."""
        if kind == DISK:
            with full(self.outputs.parent):
                run.join()
            return "disk"
        whom = self.chance.choice(("first", "rank", "all") if self.devices > 1 else ("first",))
        ranks = run.ranks() if whom != "first" else []
        if whom == "rank" and not ranks:
            whom = "first"
        pids = {"first": [run.pid], "rank": [self.chance.choice(ranks or [0])], "all": [run.pid, *ranks]}[whom]
        try:
            for pid in pids:
                os.kill(pid, signal.Signals[kind])
            if kind == STOP:
                time.sleep(1)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return ""
        return whom

    def _ended(self, run: Run, kind: str = "", whom: str = "") -> bool:
        """Check how the run ended; return whether it must be started again."""
        try:
            code, printed = run.end()
        except TimeoutError as error:
            self.faults.append(f"{kind} {whom}: {error}")
            return True
        signals = {0, 128 + signal.Signals[kind], -signal.Signals[kind]} if kind.startswith("SIG") else {0}
        expected = CODES.get(kind, signals)
        if kind == KILL and whom != "first":
            expected = expected | {1}
        if code not in expected:
            self.faults.append(f"{kind} {whom}: exit code {code}:\n{printed}")
        elif "Traceback" in printed:
            self.faults.append(f"{kind} {whom}: a traceback:\n{printed}")
        return code != 0


@contextlib.contextmanager
def small_disk(folder: Path, size: str = "16m") -> Iterator[bool]:
    """Mount a small file system at ``folder``; yield whether that is possible."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "kill_runs", folder], capture_output=True)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the small disk mounted at ``folder``, and free it again."""
    assert os.path.ismount(folder), folder
    path = folder / "filler"
    try:
        with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(2**12))
        yield
    finally:
        path.unlink()


def plan(kills: int, kinds: Sequence[str], chance: random.Random) -> list[list[tuple[str, str]]]:
    """Kills and their aims, by trial: a trial has two to four, in the order of the moments of a run.

    Only the last may be a SIGSTOP, after which a run goes on to its end.
    """
    aims = [AIMS[number % len(AIMS)] for number in range(kills)]
    ending = [kind for kind in kinds if kind != STOP] or list(kinds)
    trials = []
    while aims:
        size = chance.randint(2, 4)
        ordered, aims = sorted(aims[:size], key=AIMS.index), aims[size:]
        trial = [(chance.choice(ending), aim) for aim in ordered[:-1]]
        trials.append([*trial, (chance.choice(kinds), ordered[-1])])
    return trials


def attempt(root: Path, devices: int, reference: End, kills: Sequence[tuple[str, str]], chance: random.Random) -> Trial:
    """Carry out one trial in the folder ``root``, which is empty afterwards."""
    place = root / "trial"
    place.mkdir()
    with small_disk(place) if any(kind == DISK for kind, _ in kills) else contextlib.nullcontext():
        trial = Trial(place / "outputs", devices, reference, chance)
        for kind, aim in kills:
            if not trial.hit(kind, aim):
                break
        trial.finish()
    shutil.rmtree(place)
    return trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="numbers of ranks, in turn")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--minutes", type=float, default=60, help="start no trial after these")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    os.chdir(Path(__file__).parents[1])  # the server imports the package from here, whichever is installed
    sys.path.insert(0, os.getcwd())
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="kill_runs") as root:
        sys.exit(0 if hit_and_compare(Path(root), options) else 1)


def hit_and_compare(root: Path, options: argparse.Namespace) -> bool:
    """Carry out all trials, print the table, and return whether there was no fault."""
    chance, began = random.Random(options.seed), time.monotonic()
    with small_disk(root) as possible:
        kinds = [kind for kind in options.kinds or KINDS if possible or kind != DISK]
    if not possible:
        print("no full disk: only root can mount a small file system")
    undisturbed(root / "first", 1)  # the server imports torch, which takes long
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)  # of this process only, which must see each file in time
    references = {devices: undisturbed(root / f"whole{devices}", devices) for devices in options.ranks}
    counts: dict[tuple[int, Hit], list[int]] = {}  # kills, those of runs that lost nothing, those without any fault
    faults = 0
    for number, kills in enumerate(plan(options.kills, kinds, chance)):
        if time.monotonic() - began > 60 * options.minutes:
            break
        devices = options.ranks[number % len(options.ranks)]
        trial = attempt(root, devices, references[devices], kills, chance)
        faults += len(trial.lost + trial.faults)
        for hit in trial.hits:
            row = counts.setdefault((devices, hit), [0, 0, 0])
            row[:] = [row[0] + 1, row[1] + (not trial.lost), row[2] + (not trial.lost + trial.faults)]
        words = ", ".join(f"{hit.kind} of {hit.whom} in {hit.doing}" for hit in trial.hits) or "none in time"
        print(f"{number + 1:>3}  ranks {devices}: {words}: {'equal' if not trial.lost else 'NOT EQUAL'}", flush=True)
        for fault in trial.lost + trial.faults:
            print(f"     {fault}", flush=True)
    print(f"\n{'ranks':>5}  {'kill':<10} {'of':<6} {'in':<11} {'count':>5} {'equal':>5} {'no fault':>8}")
    for (devices, hit), (count, equal, clean) in sorted(counts.items(), key=str):
        print(f"{devices:>5}  {hit.kind:<10} {hit.whom:<6} {hit.doing:<11} {count:>5} {equal:>5} {clean:>8}")
    total, equal, clean = (sum(column) for column in zip((0, 0, 0), *counts.values(), strict=True))
    minutes = (time.monotonic() - began) / 60
    print(f"{total} kills in {minutes:.0f} min; {equal} of runs that ended equal, {clean} of runs without any fault")
    return faults == 0


if __name__ == "__main__":
    main()
