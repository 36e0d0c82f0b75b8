"""Tune the learning rate and the temperature of cells of a comparison, and print what to write into losses.yaml.

    python scripts/tune_losses.py losses/batch row=DCL col=128
    python scripts/tune_losses.py losses/negatives row=DCL temperature.tau=0.2    # the temperature of all negatives
    python scripts/tune_losses.py losses/cifar10 devices=8                        # all cells of a table

Each cell is a grid of rates and, if its loss has one, temperatures, cut by successive halving: all settings train for
a part of the epochs, the better half to the end, by kNN of a tenth of the training images that is held out, with seed
0. The best three are trained with two more seeds, and the mean of the three decides. If its rate is at an end of the
list, the next one is added. No test image is seen. The same command goes on with a tuning that was interrupted, and
trains nothing twice.
"""

import argparse
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.compositions import compositions
from ssl_bench.errors import ConfigError
from ssl_bench.objective import losses
from ssl_bench.papers.cells import Cell, Table, merge
from ssl_bench.papers.selection import Selection

RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]  # for 256 images; at first those of START
START = slice(4, 8)
TEMPERATURES = "0.1,0.2,0.5"
TUNED = ("optimizer.lr", "temperature.tau")
METRIC = "knn_val/top1"
PART = 4  # the part of the epochs after which the better half goes on is a quarter, at least one
FINALISTS, SEEDS = 3, [0, 1, 2]  # one seed alone differs by as much as the best settings do


def tune(table: Table, cell: Cell, selection: Selection) -> list[str]:
    """Overrides of the best setting of a cell."""
    folder = selection.outputs / "tuning" / f"{table.name}_{cell.row}_{cell.column}".replace("/", "_").replace(" ", "_")
    fixed = [override for override in cell.overrides if override.split("=")[0] not in (*TUNED, "evaluate")]
    composed = compositions([(cell.command, tuple(fixed))])[cell.command, tuple(fixed)]
    if isinstance(composed, Exception):
        raise composed
    config = composed.config(0)
    loss = getattr(losses, config["loss"]["_target_"].rpartition(".")[2])
    temperatures = selection.setting("temperature.tau") or TEMPERATURES
    first, last = START.start, START.stop
    while True:
        rates = [f"{rate:g}" for rate in RATES[first:last]]
        space = [f"optimizer.lr={','.join(rates)}"] + [f"temperature.tau={temperatures}"] * loss.uses_tau
        search(folder, fixed, space, config["epochs"], selection)
        best = confirmed(folder, fixed, selection)
        if best["optimizer.lr"] == rates[0] and first > 0:
            first -= 1
        elif best["optimizer.lr"] == rates[-1] and last < len(RATES):
            last += 1
        else:
            return [f"{key}={value}" for key, value in best.items()]


def search(folder: Path, fixed: list[str], space: list[str], epochs: int, selection: Selection) -> None:
    """Halve a grid of settings with one seed; its record stands in a folder."""
    parts = f"[{max(1, epochs // PART)},{epochs}]"
    halving = ["hydra/sweeper=halving", f"hydra.sweeper.epochs={parts}", "hydra.sweeper.keep=0.5"]
    train(folder, [*fixed, *halving, "seed=0"], space, selection)


def confirmed(folder: Path, fixed: list[str], selection: Selection) -> dict[str, str]:
    """The best of the finalists by the mean over seeds: value of each tuned key."""
    best, highest = dict[str, str](), -math.inf
    for setting, _ in sorted(ended(folder), key=lambda run: -run[1])[:FINALISTS]:
        overrides = [f"{key}={value}" for key, value in setting.items()]
        seeds = folder / "seeds" / "_".join(setting.values())
        train(seeds, [*fixed, f"seed={','.join(map(str, SEEDS))}"], overrides, selection)
        values = [value for _, value in ended(seeds)]
        mean = math.fsum(values) / len(SEEDS) if len(values) == len(SEEDS) else -math.inf
        print(f"{' '.join(overrides)}: {METRIC} {mean:.4f}, mean of {len(values)} seeds", flush=True)
        if mean > highest:
            best, highest = setting, mean
    if not best:
        sys.exit(f"{folder}: no setting has come to its end with every seed")
    return best


def train(folder: Path, fixed: list[str], space: list[str], selection: Selection) -> None:
    """Train a grid by the program, for kNN of held-out images."""
    given = [setting for setting in selection.settings if setting.split("=")[0] not in TUNED]
    held_out = ["name=tuning", f"hydra.sweep.dir={folder}", "evaluate=knn_val", "evaluate.baselines=[]"]
    overrides = merge(fixed, held_out, space, given)
    done = subprocess.run([sys.executable, "-m", "ssl_bench", "train", "-m", *overrides], check=False)
    if done.returncode not in (0, 1):  # 1: a run failed, as at a rate where it diverges; the others count
        done.check_returncode()


def ended(folder: Path) -> list[tuple[dict[str, str], float]]:
    """Tuned keys and metric of the runs of a grid that went on to the end."""
    grid: Any = files.read_json(folder / "grid.json")
    found = list[tuple[dict[str, str], float]]()
    for number, overrides in enumerate(grid["runs"]):
        job: Any = files.read_json(folder / "jobs" / f"{number}.json")  # none of a run that was finished before
        results: Any = files.read_json(Path(job["folder"] if job else grid["finished"][str(number)]) / "results.json")
        setting = dict(override.split("=", 1) for override in overrides if override.split("=")[0] in TUNED)
        if results is not None and METRIC in results["metrics"]:
            found.append((setting, results["metrics"][METRIC]))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="+", metavar="TABLE", help="and row=, col=, or key=value for all runs")
    words = parser.parse_args(arguments).words
    selection = Selection.read([w for w in words if "=" not in w], False, [w for w in words if "=" in w])
    tuned: dict[str, dict[str, Any]] = {}
    try:
        for table in selection.tables():
            for cell in selection.cells(table):
                best = ", ".join(tune(table, cell, selection))
                tuned.setdefault(cell.row, {})[cell.column] = f"{{set: [{best}]}}"
    except ConfigError as error:
        parser.error(str(error))
    except subprocess.CalledProcessError as error:  # which has said why
        sys.exit(error.returncode)
    for row, columns in tuned.items():
        print(f"{row}: {', '.join(f'{column}: {value}' for column, value in columns.items())}")


if __name__ == "__main__":
    main()
