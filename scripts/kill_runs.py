"""Kills small runs with SIGKILL at random moments, resumes them, and compares them with one that nobody disturbed.

    python scripts/kill_runs.py --kills 50

Half of them have one rank and half two. A run must end in the same weights and the same losses, bit for bit, and the
process that is killed must leave none behind that it started.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

RUN = ["backbone.width=4", "head.out=16", "optimizer=sgd", "tracking=off", "log_every=1", "checkpoint.every=1"]
RUN += ["evaluate=[]", "evaluate.baselines=[]", "epochs=4"]
SETTLE = 5.0  # seconds in which the kernel must have ended the ranks


def start(outputs: Path, devices: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ssl_bench", "train", *RUN, f"devices={devices}", f"paths.outputs={outputs}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def state(outputs: Path) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The weights at the end and the loss of every step."""
    (folder,) = (path.parent for path in outputs.glob("*/*/results.json"))
    checkpoint = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return checkpoint["method"], [row["loss"] for row in rows if "loss" in row]


def same(one: tuple[dict[str, torch.Tensor], list[float]], other: tuple[dict[str, torch.Tensor], list[float]]) -> bool:
    weights = one[0].keys() == other[0].keys() and all(torch.equal(one[0][k], other[0][k]) for k in one[0])
    return weights and one[1] == other[1]


def alive(outputs: Path) -> list[int]:
    """Processes that have to do with a folder of results, by their commands or by the files that they have open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_text() + (process / "environ").read_text()
        except OSError:
            continue
        if str(outputs) in said and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    moments, root = random.Random(options.seed), Path(tempfile.mkdtemp(prefix="kill_runs"))
    undisturbed, seconds = {}, {}
    for devices in (1, 2):
        began = time.monotonic()
        assert start(root / f"whole{devices}", devices).wait() == 0
        seconds[devices] = time.monotonic() - began
        undisturbed[devices] = state(root / f"whole{devices}")
    equal = killed = 0
    for number in range(options.kills):
        devices, outputs = number % 2 + 1, root / str(number)
        os.environ["KILL_RUNS"] = str(outputs)  # by which processes are recognised
        run = start(outputs, devices)
        moment = moments.uniform(0, seconds[devices])
        time.sleep(moment)
        saved = len(list(outputs.glob("*/*/checkpoints/last.pt")))
        run.send_signal(signal.SIGKILL)
        killed += run.wait() == -signal.SIGKILL
        end = time.monotonic() + SETTLE
        while (left := alive(outputs)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left, f"processes {left} have outlived the run that was killed after {moment:.2f} s"
        assert start(outputs, devices).wait() == 0
        found = same(state(outputs), undisturbed[devices])
        equal += found
        print(f"{number + 1:>3}  {devices} ranks  killed after {moment:5.2f} s, {saved} saved, ", end="")
        print("the same bits" if found else "NOT THE SAME", flush=True)
        shutil.rmtree(outputs)
    print(
        f"{options.kills} runs, {killed} killed before their end, {equal} bit-identical finishes, no process left over"
    )
    shutil.rmtree(root)
    sys.exit(0 if equal == options.kills else 1)


if __name__ == "__main__":
    main()
