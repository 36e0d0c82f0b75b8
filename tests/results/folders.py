"""Folders of runs and grids that are made by hand, and terminals."""

import fcntl
import json
import os
import pty
import shlex
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ssl_bench.config.identity import run_id
from ssl_bench.record.runs import DIVERGED, LEASE, LEASE_SECONDS
from tests.evaluated import with_evaluations

OUTPUTS = Path("outputs")
LOST = f"the loss is {DIVERGED} at step 2 (lr 0.075, tau 0.2): a smaller optimizer.lr, a warm-up may help"


def configuration(**values: Any) -> dict[str, Any]:
    """Configuration of ten epochs of 100 images, two steps each."""
    known: dict[str, Any] = {"epochs": 10, "max_steps": None, "batch_size": {"size": 50}, "evaluate": {"every": 0}}
    known |= {"choices": {"dataset": "mnist", "loss": "dcl"}, "paths": {"outputs": "outputs"}} | values
    loss = {"_target_": f"ssl_bench.{known['choices'].get('loss')}"}  # the run_id has classes, not names of options
    return known | {"loss": loss | (known.get("loss") or {})}


def make(name: str, /, rows: Sequence[dict[str, Any]] = (), **values: Any) -> Path:
    """Make the directory of a run under ``outputs``, whose name is its run_id.

    Args:
        name: ``experiment/label``; the label is for the reader of the test only.
        values: values of the configuration; the seed defaults to the number of runs of the experiment.
    """
    experiment = OUTPUTS / name.rpartition("/")[0]
    config = {"seed": len([*experiment.glob("*/config.yaml")])} | configuration(**values)
    folder = experiment / run_id(config)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if rows:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(epochs: int, seconds: float = 10.0) -> list[dict[str, Any]]:
    """A row at the end of each epoch."""
    return [
        {"step": 2 * e, "epoch": float(e), "loss": 1.0, "images_per_second": 100 / seconds, "seconds": seconds * e}
        for e in range(1, epochs + 1)
    ]


def finish(folder: Path, seconds: float, **metrics: float) -> None:
    values = {name.replace("_top1", "/top1"): value for name, value in metrics.items()}
    config = yaml.safe_load((folder / "config.yaml").read_text())
    content = {"run_id": folder.name, "config": config, "metrics": values, "seconds": seconds}
    (folder / "results.json").write_text(json.dumps(with_evaluations(content)))


def fail(folder: Path, reason: str = LOST) -> Path:
    (folder / "failed.json").write_text(json.dumps({"reason": reason, "detail": ""}))
    return folder


def add(folder: Path, **parts: Any) -> None:
    """Add parts to ``results.json``, with the evaluations of another configuration and other metrics."""
    path = folder / "results.json"
    content = json.loads(path.read_text()) | parts
    other = any(isinstance(parts.get(name), dict) for name in ("config", "metrics"))
    path.write_text(json.dumps(with_evaluations(content) if other else content))


def run(
    name: str, top1: float | None, points: Sequence[dict[str, Any]] = (), command: str | None = None, **settings: Any
) -> Path:
    """Make a run whose command sets some settings, a.b as a__b; it is finished if it has an accuracy by kNN.

    Args:
        name: as in :func:`make`.
        points: rows of metrics.
        command: the words of its command; None: the settings.
        settings: values by key; ``loss``, ``dataset`` and ``batch_size`` (a number) name options of groups.
    """
    values: dict[str, Any] = {"choices": {"dataset": "mnist"}, "evaluate": {"knn": {}}, "name": name.partition("/")[0]}
    for path, value in settings.items():
        *groups, key = path.split("__")
        node, options = values, {"loss": {"_target_": value}, "batch_size": {"size": value}, "dataset": None}
        for group in groups:
            node = node.setdefault(group, {})
        if path in options:
            values["choices"][path] = f"b{value}" if path == "batch_size" else value
        if options.get(path, value) is not None:
            node[key] = options.get(path, value)
    words = (f"{path.replace('__', '.')}={values['choices'].get(path, value)}" for path, value in settings.items())
    folder = make(name, points or rows(2), **values)
    (folder / "command.txt").write_text(f"ssl-bench train {' '.join(words) if command is None else command}")
    if top1 is not None:
        finish(folder, 20.0, knn_top1=top1)
    return folder


def claim_elsewhere(folder: Path, host: str, silent: float) -> None:
    """Make the lease of another machine, last touched ``silent`` seconds ago."""
    text = f"filelock/2\npid=77\nhost={host}\nmode=lease\ntoken=0123\nduration={LEASE_SECONDS}\nstart=1\n"
    (folder / LEASE).write_text(text)
    touch(folder / LEASE, time.time() - silent)


def touch(path: Path, when: float) -> None:
    """Set the time at which a file was changed last."""
    os.utime(path, times=(when, when))


def make_grid(name: str, runs: Sequence[str], folders: Mapping[int, Path] = {}, started: float = 0.0) -> Path:
    """Make the file of a grid whose runs have these words; ``folders``: directories of the runs that have begun."""
    overrides = [shlex.split(run) for run in runs]
    experiment = next((word[5:] for word in overrides[0] if word.startswith("name=")), "default")
    places = [
        os.path.relpath(folders.get(number, OUTPUTS / experiment / f"{number}"), OUTPUTS) for number in range(len(runs))
    ]
    asked = [[words, place] for words, place in zip(overrides, places, strict=True)]
    content = {"command": f"ssl-bench train -m {' '.join(runs)}", "single": "ssl-bench train", "started": started}
    path = OUTPUTS / experiment / f"grid-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | {"runs": asked}))
    return path


def terminal(width: int, height: int) -> tuple[int, int]:
    """Open a terminal of this size; return its two ends."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    return master, slave


def read_until(master: int, text: str) -> str:
    printed = ""
    deadline = time.monotonic() + 60
    while text not in (printed := printed + os.read(master, 65536).decode()):
        assert time.monotonic() < deadline, printed
    return printed
