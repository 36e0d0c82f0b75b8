"""Kill small runs with SIGKILL at random moments, resume them, and compare them with a run that was never killed.

    python scripts/kill_runs.py --kills 50

Runs have one rank and two ranks in turn. A resumed run must end with the same weights and the same losses, bit for bit.
A killed process must leave no process behind.
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
SETTLE = 5.0  # seconds within which the kernel must have ended the ranks
State = tuple[dict[str, torch.Tensor], list[float]]


def start(outputs: Path, devices: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "ssl_bench", "train", *RUN, f"devices={devices}", f"paths.outputs={outputs}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def final_state(outputs: Path) -> State:
    """The weights at the end, and the loss of every step."""
    (folder,) = (path.parent for path in outputs.glob("*/*/results.json"))
    checkpoint = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return checkpoint["method"], [row["loss"] for row in rows if "loss" in row]


def identical(one: State, other: State) -> bool:
    weights = one[0].keys() == other[0].keys() and all(torch.equal(one[0][k], other[0][k]) for k in one[0])
    return weights and one[1] == other[1]


def processes(outputs: Path) -> list[int]:
    """Processes that have this folder in their command line or their environment."""
    numbers = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_text() + (process / "environ").read_text()
        except OSError:
            continue
        if str(outputs) in text and int(process.name) != os.getpid():
            numbers.append(int(process.name))
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args()
    moments, root = random.Random(options.seed), Path(tempfile.mkdtemp(prefix="kill_runs"))
    references, seconds = {}, {}
    for devices in (1, 2):
        began = time.monotonic()
        assert start(root / f"whole{devices}", devices).wait() == 0
        seconds[devices] = time.monotonic() - began
        references[devices] = final_state(root / f"whole{devices}")
    equal = killed = 0
    for number in range(options.kills):
        devices, outputs = number % 2 + 1, root / str(number)
        os.environ["KILL_RUNS"] = str(outputs)  # inherited by every process of the run, which identifies them
        run = start(outputs, devices)
        moment = moments.uniform(0, seconds[devices])
        time.sleep(moment)
        saved = len(list(outputs.glob("*/*/checkpoints/last.pt")))
        run.send_signal(signal.SIGKILL)
        killed += run.wait() == -signal.SIGKILL
        end = time.monotonic() + SETTLE
        while (left := processes(outputs)) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left, f"processes {left} still exist after their run was killed at {moment:.2f} s"
        assert start(outputs, devices).wait() == 0
        same = identical(final_state(outputs), references[devices])
        equal += same
        print(f"{number + 1:>3}  {devices} ranks  killed after {moment:5.2f} s, {saved} checkpoints, ", end="")
        print("same bits" if same else "DIFFERENT BITS", flush=True)
        shutil.rmtree(outputs)
    print(f"{options.kills} runs, {killed} killed before their end, {equal} ended with the same bits, no process left")
    shutil.rmtree(root)
    sys.exit(0 if equal == options.kills else 1)


if __name__ == "__main__":
    main()
