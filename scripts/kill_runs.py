"""Kill small runs at random moments, start them again, and compare them with a run that was never disturbed.

    python scripts/kill_runs.py --kills 100
    python scripts/kill_runs.py --kills 60 --grid        # of two runs at a time
    python scripts/kill_runs.py --kills 20 --workers     # the same, of which only a worker is hit

A run of one or two ranks is hit by SIGKILL, SIGTERM, SIGINT, SIGSTOP (SIGCONT follows a second later) or a full disk
(a small tmpfs, for which one must be root), once to three times in a row, and is then started until it ends. It must
end with the same checkpoint, the same losses and the same results, bit for bit, with the same files and no process
left. Each end must have the exit code of its signal and must print no traceback. Exit code 1: something was not so.
"""

import argparse
import contextlib
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
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils._pytree import tree_flatten

RUN = ["backbone.width=4", "head.out=16", "optimizer=sgd", "tracking=off", "log_every=1", "checkpoint.every=1"]
RUN += ["epochs=2", "evaluate=[knn,linear]", "evaluate.baselines=[init]", "evaluate.every=1"]
RUN += ["evaluate.linear.epochs=5", "evaluate.linear.lrs=[0.1]"]
GRID = ["-m", "seed=0,1", "launcher=local", "launcher.jobs=2"]
ONLY = list[str]()  # what is hit, if not all kinds of processes
STOP, DISK = "SIGSTOP", "full disk"
# The exit codes that each kind of kill may have, and a run that is not killed.
CODES = {"": {0}, "SIGKILL": {0, 1, -9}, "SIGTERM": {0, 143, -15}, "SIGINT": {0, 130, -2}, STOP: {0}, DISK: {0, 1, 2}}
KINDS = list(CODES)[1:]
End = dict[str, Any]  # what a run has left on the disk
LIMIT = 200.0  # seconds within which a run, and then its other processes, must end


class Run:
    """A run in a session of its own, forked from a server that has imported torch."""

    def __init__(self, outputs: Path, devices: int) -> None:
        self.printed = Path(f"{outputs}-{time.monotonic_ns()}.txt")
        arguments = ["train", *RUN, f"devices={devices}", f"paths.outputs={outputs}"]
        self.process = multiprocessing.get_context("forkserver").Process(target=_train, args=(arguments, self.printed))
        self.process.start()
        self.pid = self.process.pid or 0

    def processes(self) -> list[psutil.Process]:
        """The run's first process, its ranks, and their helpers."""
        alive = (p for p in psutil.process_iter(["status"]) if p.info["status"] != psutil.STATUS_ZOMBIE)
        return [process for process in alive if psutil.pid_exists(process.pid) and os.getsid(process.pid) == self.pid]

    def strike(self, kind: str, chance: random.Random, disk: Path) -> None:
        """Hit the first process, a rank or all by a signal, or let the disk be full until the run ends."""
        if kind == DISK:
            assert os.path.ismount(disk)
            with open(disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(2**12))
            self.process.join(LIMIT)
            (disk / "filler").unlink()
            return
        ranks = [p for p in self.processes() if p.pid != self.pid and p.ppid() != self.pid]
        first = [psutil.Process(self.pid)]
        every = [ranks[:1]] if ONLY and ranks else [first, ranks[:1] or first, [*first, *ranks]]
        hit = chance.choice(every)
        for process in hit:
            process.send_signal(signal.Signals[kind])
        if kind == STOP:
            time.sleep(1)
            for process in {*hit, *self.processes()}:  # one that has just started may have no session of its own yet
                process.resume()

    def end(self, kind: str = "") -> tuple[bool, list[str]]:
        """Wait for the end of all processes; return whether the run is done, and what was not as it must be."""
        self.process.join(LIMIT)
        _, left = psutil.wait_procs(self.processes(), LIMIT)
        for process in left:
            process.kill()
        self.process.join()
        code, there = self.process.exitcode, self.printed.exists()  # not if it was killed at once
        printed = self.printed.read_text(errors="replace") if there else ""
        faults = [f"processes {[process.pid for process in left]} did not end"] if left else []
        faults += [f"exit code {code}"] if code not in CODES[kind] else []
        faults += ["a traceback"] if "Traceback" in printed else []
        return code == 0, [f"{kind or 'restart'}: {fault}:\n{printed}" for fault in faults]


def _train(arguments: Sequence[str], printed: Path) -> None:
    from ssl_bench import cli

    os.setsid()
    with open(printed, "w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background of a shell
    sys.argv = ["ssl-bench", *arguments]
    cli.main()


def left_by(outputs: Path) -> End:
    """The files of the finished runs."""
    folders = sorted(path.parent for path in outputs.glob("*/*/results.json"))
    ends = [_left_by(folder) for folder in folders]
    return {key: [end[key] for end in ends] for key in ends[0]} | {
        "files": sorted(str(path.relative_to(outputs)) for path in outputs.rglob("*"))
    }


def _left_by(folder: Path) -> End:
    checkpoint = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "checkpoint": {key: value for key, value in checkpoint.items() if key not in ("seconds", "starts")},
        "rows": [{k: v for k, v in row.items() if k not in ("seconds", "images_per_second")} for row in rows],
        "results": json.loads((folder / "results.json").read_text())["metrics"],
    }


def differences(one: End, other: End) -> list[str]:
    """The differences between two ends of a run: values are equal only bit for bit."""
    found = []
    for name in one:
        (a, form), (b, other_form) = tree_flatten(one[name]), tree_flatten(other[name])
        pairs = zip(a, b, strict=False)
        equal = (torch.equal(x, y) and x.dtype == y.dtype if torch.is_tensor(x) else x == y for x, y in pairs)
        if form != other_form or list(map(type, a)) != list(map(type, b)) or not all(equal):
            found.append(f"other {name}" + (f": {set(a) ^ set(b)}" if name == "files" else ""))
    return found


def undisturbed(outputs: Path, devices: int) -> tuple[End, float]:
    """The end of a run, and its seconds."""
    began, (done, faults) = time.monotonic(), Run(outputs, devices).end()
    assert done and not faults, faults
    return left_by(outputs), time.monotonic() - began


def attempt(
    place: Path, devices: int, reference: End, kills: Sequence[tuple[str, float]], chance: random.Random
) -> tuple[list[str], list[str]]:
    """Hit a run after some seconds each, until it ends; the kinds of the hits, and what was not as it must be."""
    outputs, hits, faults = place / "outputs", list[str](), list[str]()
    for kind, seconds in [*kills, *[("", 0.0)] * 3]:
        run = Run(outputs, devices)
        run.process.join(seconds)
        hit = bool(kind) and run.process.exitcode is None
        with contextlib.suppress(psutil.NoSuchProcess):
            if hit:
                hits.append(kind)
                run.strike(kind, chance, place)
        done, found = run.end(kind if hit else "")
        faults += found
        if done:
            return hits, faults + differences(reference, left_by(outputs))
    return hits, [*faults, "it did not end"]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system at ``folder``; yield whether that is possible."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "kill_runs", str(folder)]
    possible = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield possible
    finally:
        if possible:
            subprocess.run(["umount", "-l", folder], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="numbers of ranks, in turn")
    kinds_of_grids = parser.add_mutually_exclusive_group()
    kinds_of_grids.add_argument("--grid", action="store_true", help="kill grids of two runs at a time")
    kinds_of_grids.add_argument("--workers", action="store_true", help="kill the workers of such grids, on one rank")
    options = parser.parse_args()
    RUN.extend(GRID if options.grid or options.workers else [])
    ONLY.extend(["worker"] if options.workers else [])
    options.ranks = [1] if options.workers else options.ranks
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    multiprocessing.set_forkserver_preload(["ssl_bench.launch.run", "torch._dynamo", "ssl_bench.train"])
    chance, counts, wrong = random.Random(0), Counter[tuple[int, str]](), 0
    with tempfile.TemporaryDirectory(prefix="kill_runs") as folder:
        root = Path(folder)
        undisturbed(root / "first", 1)  # the server imports torch, which takes long
        references = {devices: undisturbed(root / f"whole{devices}", devices) for devices in options.ranks}
        while counts.total() < options.kills:
            devices = options.ranks[counts.total() % len(options.ranks)]
            reference, seconds = references[devices]
            with small_disk(root / "disk") as possible:
                kinds = KINDS if possible else KINDS[:-1]
                kills = [(chance.choice(kinds), chance.uniform(0, seconds)) for _ in range(chance.randint(1, 3))]
                hits, faults = attempt(root / "disk", devices, reference, kills, chance)
            shutil.rmtree(root / "disk")
            counts.update((devices, kind) for kind in hits)
            wrong += bool(faults)
            print(f"ranks {devices}: {', '.join(hits) or 'none in time'}: {' '.join(faults) or 'equal'}", flush=True)
    print(*(f"{kind} of {devices}: {count}" for (devices, kind), count in counts.items()), sep="\n")
    print(f"{counts.total()} kills, {wrong} runs with a fault")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
