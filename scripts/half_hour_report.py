"""Write half_hour.json and half_hour.md of a folder that gpu_half_hour.sh fills, with what is there so far.

python scripts/half_hour_report.py outputs/gpu_half_hour
"""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from benchmark_step import tables
from timing import environment, markdown

from ssl_bench import files

ENDS = {"0": "done", "124": "ended by its limit", "137": "killed at its limit", "skipped": "skipped"}


def parts(folder: Path) -> list[dict[str, str]]:
    """The parts that have ended: name, limit and duration in seconds, exit code or "skipped", command."""
    keys = ("part", "limit", "seconds", "code", "command")
    lines = (folder / "parts.tsv").read_text().splitlines()
    return [dict(zip(keys, line.split("\t"), strict=False)) for line in lines]


def tests(log: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped so far, from pytest's output."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return dict(Counter(re.findall(r"^(?!FAILED|ERROR).*\b(PASSED|FAILED|SKIPPED|ERROR)\b", text, re.MULTILINE)))


def run(folder: Path) -> dict[str, Any]:
    """Metrics and seconds of a training in outputs/NAME, or the last row of one that has not ended."""
    for path in folder.glob("*/results.json"):
        found = files.read_json(path)
        return {key: found[key] for key in ("metrics", "seconds", "environment")}
    rows = [row for path in folder.glob("*/metrics.jsonl") for row in files.read_json_lines(path) if "loss" in row]
    return {"unfinished": rows[-1]} if rows else {}


def collect(folder: Path) -> dict[str, Any]:
    checks = sorted(folder.glob("checks/*/check.json"))
    found: dict[str, Any] = {"parts": parts(folder), "tests": tests(folder / "tests.log")}
    found["check"] = files.read_json(checks[-1]) if checks else None
    for name in ("step", "losses", "other_losses"):
        found[name] = files.read_json(folder / f"{name}.json")
    found["runs"] = {name: run(folder / name) for name in ("simclr", "dcl")}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"environment": environment(["torchvision", "kornia", "lightly"], device)} | found


def table(*rows: list[Any]) -> str:
    """A Markdown table whose first row is the head."""
    head, *others = [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others])


def page(found: dict[str, Any]) -> str:
    """The Markdown page: what was measured by what on which machine."""
    ended = [
        [each["part"], ENDS.get(each["code"], f"exit code {each['code']}"), each["seconds"], f"`{each['command']}`"]
        for each in found["parts"]
    ]
    blocks = [found["environment"], table(["part", "how it ended", "s", "command"], *ended)]
    if found["check"]:
        lines = [
            [each["section"], each["name"], each["verdict"], each["figure"]] for each in found["check"]["findings"]
        ]
        blocks.append(table(["check", "", "verdict", "figure"], *lines))
    if found["tests"]:
        blocks.append(table(["tests", "number"], *([name.lower(), n] for name, n in found["tests"].items())))
    if found["step"]:
        blocks.append(tables(found["step"]["rows"]))
    for name in ("losses", "other_losses"):
        if rows := found[name] and found[name]["rows"]:
            title = "ms of a loss, forward and backward (ratio to the first line), by images"
            blocks.append(markdown(rows, "images", rows[0]["name"], title))
    trained = [[name, *training(each)] for name, each in found["runs"].items() if each]
    if trained:
        head = ["CIFAR-10, ResNet-18, 20 epochs, batch 512", "kNN", "linear", "s"]
        blocks.append(table(head, *trained))
    return "\n\n".join(blocks) + "\n"


def training(found: dict[str, Any]) -> list[str]:
    """kNN, linear probe and seconds of a run."""
    if "unfinished" in found:
        return [f"unfinished: loss {found['unfinished']['loss']:.3f} in step {found['unfinished']['step']}", "", ""]
    accuracies = [found["metrics"].get(f"{name}/top1") for name in ("knn", "linear")]
    return [*("" if value is None else f"{value:.1%}" for value in accuracies), f"{found['seconds']:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = collect(folder)
    files.write_json(folder / "half_hour.json", found)
    files.write_text(folder / "half_hour.md", page(found))


if __name__ == "__main__":
    main()
