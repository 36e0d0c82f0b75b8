"""``ssl-bench status``: the runs under ``outputs/``, from their files alone."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ssl_bench import files
from ssl_bench.identity import VOLATILE


@dataclass(frozen=True)
class State:
    """What the files of a run directory say. ``state`` is done, partial or failed."""

    folder: Path
    state: str
    detail: str
    config: dict[str, Any]


def runs(outputs: Path) -> Iterator[State]:
    """Every run directory under ``outputs``, by name and then in the order of their start."""
    folders = [path.parent for path in outputs.glob("**/config.yaml") if "wandb" not in path.parts]
    for folder in sorted(folders, key=lambda f: (f.parent, (f / "config.yaml").stat().st_mtime)):
        try:
            config = yaml.safe_load((folder / "config.yaml").read_text())
        except (OSError, yaml.YAMLError):
            continue
        if not isinstance(config, dict) or "choices" not in config:
            continue
        results, failure = files.read_json(folder / "results.json"), files.read_json(folder / "failed.json")
        if results is not None:
            top1 = [f"{k} {100 * v:.1f}%" for k, v in results["metrics"].items() if k in ("knn/top1", "linear/top1")]
            yield State(folder, "done", ", ".join(top1), config)
        elif failure is not None:
            yield State(folder, "failed", failure["reason"], config)
        else:
            yield State(folder, "partial", f"epoch {_epoch(folder):.1f} of {config['epochs']}", config)


def _epoch(folder: Path) -> float:
    """The epoch of the last whole row of metrics."""
    try:
        for line in reversed((folder / "metrics.jsonl").read_text().splitlines()):
            try:
                return float(json.loads(line)["epoch"])
            except (ValueError, KeyError):
                continue
    except OSError:
        pass
    return 0.0


def cells(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Each configuration by what sets it apart from the others: the option of a group where that says it, else keys."""
    groups = [{str(k): str(v) for k, v in config["choices"].items()} for config in configs]
    by_group = {g for g in {k for group in groups for k in group} if len({str(group.get(g)) for group in groups}) > 1}
    keys = [_flat({k: v for k, v in config.items() if k not in VOLATILE | by_group}) for config in configs]
    by_key = {k for k in {k for flat in keys for k in flat} if len({flat.get(k) for flat in keys}) > 1}
    return [
        " ".join(
            [f"{g}={group[g]}" for g in sorted(by_group & group.keys())]
            + [f"{k}={flat[k]}" for k in sorted(by_key & flat.keys())]
        )
        or " ".join(group.get(g, "") for g in ("dataset", "framework", "loss", "negatives"))  # nothing to tell apart
        for group, flat in zip(groups, keys, strict=True)
    ]


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in node.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": str(value)}
    return flat


def main(arguments: Sequence[str]) -> int:
    """Prints a table of the runs; 0, or 2 where there is no such folder."""
    parser = argparse.ArgumentParser("ssl-bench status", description="The runs under a results folder.")
    parser.add_argument("outputs", nargs="?", default="outputs", type=Path, help="default: outputs")
    outputs: Path = parser.parse_args(arguments).outputs
    if not outputs.is_dir():
        print(f"ssl-bench: there is no folder {outputs}: give the one that paths.outputs named")
        return 2
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    found = list(runs(outputs))
    table = Table(Column("run", no_wrap=True), "state", "cell", "result", box=None, pad_edge=False)
    colours = {"done": "green", "partial": "yellow", "failed": "red"}
    for run, cell in zip(found, cells([run.config for run in found]), strict=True):
        state = Text(run.state, colours[run.state])
        table.add_row(str(run.folder.relative_to(outputs)), state, Text(cell), Text(run.detail))
    Console(highlight=False).print(table)
    print(", ".join(f"{sum(run.state == state for run in found)} {state}" for state in colours))
    return 0
