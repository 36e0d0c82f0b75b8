"""Write half_hour.json and half_hour.md of a folder that gpu_half_hour.sh fills, with what is there so far.

    python scripts/half_hour_report.py outputs/gpu_half_hour

It needs no GPU: if the machine went away in the middle of a part, it also finds the rows of that part.
"""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tables import by_column, markdown, of_kernels, of_steps

from ssl_bench import files

ENDS = {"0": "done", "124": "ended by its limit", "137": "killed at its limit"}


def parts(folder: Path) -> list[dict[str, str]]:
    """How each part last ended: its name, limit and duration in seconds, exit code, and command."""
    keys, path = ("part", "limit", "seconds", "code", "command"), folder / "parts.tsv"
    lines = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
    return [*{line[0]: dict(zip(keys, line, strict=True)) for line in lines if len(line) == len(keys)}.values()]


def tests(log: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped so far, from pytest's output."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return dict(Counter(re.findall(r"^(?!FAILED|ERROR).*\b(PASSED|FAILED|SKIPPED|ERROR)\b", text, re.MULTILINE)))


def run(folder: Path) -> dict[str, Any]:
    """Metrics and seconds of a training, or the last row of one that has not ended."""
    for path in folder.glob("*/results.json"):
        found = files.read_json(path)
        return {key: found[key] for key in ("metrics", "seconds", "environment")}
    rows = [row for path in folder.glob("*/metrics.jsonl") for row in files.read_json_lines(path) if "loss" in row]
    return {"unfinished": rows[-1]} if rows else {}


def collect(folder: Path) -> dict[str, Any]:
    """All that the folder has, by kind; None or empty where a part has left nothing yet."""
    machine, checks = folder / "machine.txt", sorted(folder.glob("checks/*/check.json"))
    found: dict[str, Any] = {"machine": machine.read_text().splitlines() if machine.exists() else []}
    found |= {"parts": parts(folder), "tests": tests(folder / "tests.log")}
    found["check"] = files.read_json(checks[-1]) if checks else None
    for name in ("step", "kernels", "losses"):
        found[name] = files.read_json(folder / f"{name}.json")
    found["runs"] = {name: run(folder / name) for name in ("simclr", "dcl")}
    return found


def page(found: dict[str, Any]) -> str:
    """The Markdown page: the machine, how the parts ended, and their tables."""
    ended = ([p["part"], ENDS.get(p["code"], "failed"), p["code"], p["seconds"], p["command"]] for p in found["parts"])
    blocks = [*found["machine"], markdown(["part", "how it ended", "exit code", "s", "command"], *ended)]
    if found["step"]:
        blocks.append(of_steps(found["step"]["rows"]))
    if found["kernels"]:
        blocks.append(of_kernels(found["kernels"]["rows"]))
    if found["check"]:
        findings = ([f[key] for key in ("section", "name", "verdict", "figure")] for f in found["check"]["findings"])
        blocks.append(markdown(["check", "", "verdict", "figure"], *findings))
    if found["tests"]:
        blocks.append(markdown(["tests", "number"], *([name.lower(), n] for name, n in found["tests"].items())))
    if found["losses"]:
        blocks.append(by_column(found["losses"]["rows"], "images", "ms of a loss, forward and backward, by images"))
    trained = [[name, *training(each)] for name, each in found["runs"].items() if each]
    if trained:
        blocks.append(markdown(["CIFAR-10, ResNet-18, 20 epochs, batch 512", "kNN", "linear", "s"], *trained))
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
