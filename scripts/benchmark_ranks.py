"""Images per second of a run on one process with all cores and on a process per core.

Rounds alternate between them. Words that are not options are overrides of the runs.

    python scripts/benchmark_ranks.py
    python scripts/benchmark_ranks.py dataset=cifar10 max_steps=12 log_every=2
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import environment

from ssl_bench.hardware import available_cores

RUN = ["epochs=10", "evaluate=[]", "evaluate.baselines=[]", "tracking=off"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")
    options, overrides = parser.parse_known_args()
    print(environment(()), end="\n\n")
    kinds = {"one process": 1, f"{available_cores()} processes": available_cores()}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, devices in kinds.items():
            found[name].append(images_per_second([*overrides, f"devices={devices}"]))
    reference = statistics.median(found["one process"])
    print(f"{'':16}{'images/s':>10}{'slowest':>10}{'fastest':>10}{'ratio':>8}")
    for name, rates in found.items():
        median = statistics.median(rates)
        print(f"{name:16}{median:10.0f}{min(rates):10.0f}{max(rates):10.0f}{median / reference:8.2f}")


def images_per_second(overrides: list[str]) -> float:
    """Median over the rows that a run writes, without the first one."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ssl_bench", "train", *RUN, *overrides, f"paths.outputs={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (path,) = Path(folder).glob("*/*/metrics.jsonl")
        rates = [row["images_per_second"] for row in map(json.loads, path.read_text().splitlines()) if "loss" in row]
    return statistics.median(rates[1:])


if __name__ == "__main__":
    main()
