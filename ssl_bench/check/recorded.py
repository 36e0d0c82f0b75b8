"""Compare the files of a finished run with each other: the part of ``ssl-bench verify`` that costs nothing."""

import copy
import json
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ssl_bench import files
from ssl_bench.check.finding import Finding, Verdict
from ssl_bench.config.identity import agree, canonical, on_disk, recipe_id, run_id
from ssl_bench.errors import ConfigError
from ssl_bench.methods.contrastive import Contrastive
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.temperature import Cosine, Fixed, Linear
from ssl_bench.record import checkpoint, evaluations, hits, results
from ssl_bench.training.engine import Training
from ssl_bench.training.finished import read_config

EXACT = 1e-9  # relative difference of numbers that are computed in float64 and have no noise
ENTRY = {"evaluator", "id", "settings", "network", "epochs", "metrics"}
SINGLE = 1e-6  # of numbers that have passed through float32


class Recorded:
    """The files of a finished run, which are read once and never written.

    Attributes:
        claimed: what it says it was trained with.
        config: the same, to be carried out on this machine.
        results: of ``results.json``.
        rows: of ``metrics.jsonl``; ``losses`` are those of the training by step.
        states: the checkpoints ``last.pt`` and ``previous.pt`` that can be read, by name; ``unread`` says why others
            cannot.

    Raises:
        ConfigError: there is no run, it has no results, or its configuration cannot be used here.
    """

    def __init__(self, folder: Path, changes: Mapping[str, Any]) -> None:
        self.folder, self.name = folder, folder.resolve().name
        self.claimed, self.stored = read_config(folder), files.read_yaml(folder / "config.yaml", dict, named=False)
        # As it is: what contradicts itself is no result for other commands, and is to be found here.
        found: Any = files.read_json(folder / results.NAME, results.Results)
        if found is None or not {"facts", "evaluations"} <= found.keys():
            raise ConfigError(f"{folder} is not trained to its end: only a finished training can be verified")
        self.results, ran = found, found.get("environment", {})
        self.config = copy.deepcopy(self.claimed) | {"halt_at": None}
        self.config["threads"] = self.claimed["threads"] or ran.get("threads")
        if self.claimed["precision"] == "auto":  # which depends on the device
            self.config["precision"] = ran.get("precision", "auto")
        for key, value in changes.items():
            group, _, inner = key.rpartition(".")
            (self.config[group] if group else self.config)[inner] = value
        self.rows = [row for row in files.read_json_lines(folder / "metrics.jsonl") if isinstance(row, dict)]
        trained = (row for row in self.rows if isinstance(row.get("loss"), float) and type(row.get("step")) is int)
        self.losses = {row["step"]: row for row in trained}
        self.states, self.unread = dict[str, dict[str, Any]](), dict[str, str]()
        for name in ("last.pt", "previous.pt"):
            try:
                state = checkpoint.read(folder / "checkpoints" / name)
                whole = type(state.get("step")) is int and {"method", "optimizer"} <= state.keys()
                if not whole or not isinstance(state["optimizer"].get("param_groups"), list):
                    raise ValueError("has no state of a training")
                self.states[name] = state
            except ValueError as error:
                self.unread[name] = f"{name} {error}"
        self.entries = evaluations.entries(found)
        if not all(isinstance(each, Mapping) and each.keys() >= ENTRY for each in self.entries):
            raise ConfigError(f"{folder / results.NAME} is damaged: its evaluations are no evaluations")

    def identity(self) -> Iterator[str]:
        """The run_id of the configuration, beside that of the directory, the files and the checkpoints."""
        made = {run_id(self.claimed), recipe_id(self.claimed)}
        named = {"the directory": self.name, "results.json": self.results["run_id"]}
        named["config.yaml"] = run_id(self.stored) if isinstance(self.stored, Mapping) else "nothing"
        named |= {name: state["run_id"] for name, state in self.states.items()}
        for name, found in named.items():
            if found not in made:
                yield f"{name} is of {found}, and the configuration of {run_id(self.claimed)}"

    def configuration(self) -> Iterator[str]:
        """``config.yaml`` beside the configuration in ``results.json``."""
        ours, theirs = self.claimed, self.results["config"]
        if not agree(on_disk(ours), on_disk(theirs)):
            yield f"images or plugins: {on_disk(ours)} in config.yaml, {on_disk(theirs)} in results.json"
        if recipe_id(ours) != recipe_id(theirs):
            pair = [json.loads(canonical(each)) for each in (ours, theirs)]
            keys = sorted(key for key in pair[0].keys() | pair[1].keys() if pair[0].get(key) != pair[1].get(key))
            yield f"{', '.join(keys)}: not the same in config.yaml and in results.json"
        images = self.results.get("environment", {}).get("images"), self.claimed["dataset"].get("content")
        if None not in images and images[0] != images[1]:
            yield f"images: {images[1]} in config.yaml, {images[0]} in the environment of results.json"

    def steps(self, run: Training) -> Iterator[str]:
        """The steps of the results and the checkpoints, and the settings of the optimiser in these."""
        end, told = run.schedule.last_step, self.results["facts"].get("steps")
        if told != end:
            yield f"results.json is of step {told}, and config.yaml ends at step {end}"
        if "last.pt" not in self.states:
            yield self.unread["last.pt"]
        for name, state in self.states.items():
            step, groups = state["step"], state["optimizer"]["param_groups"]
            if not 0 <= step <= end or (name == "last.pt" and step != end):
                yield f"{name} is of step {step}, and config.yaml ends at step {end}"
                continue
            expected: list[Any] = run.state.optimizer.state_dict()["param_groups"]
            lr = run.schedule.lr_at(step - 1)
            asked = [{**group, "lr": lr * group.get("lr_scale", 1)} for group in expected]
            for ours, theirs in zip(asked, groups, strict=False):
                for key in sorted(ours.keys() & theirs.keys()):
                    if not _same(theirs[key], ours[key], SINGLE):
                        yield f"{name} was trained with {key} {theirs[key]}, and config.yaml gives {ours[key]}"

    def metrics(self, run: Training) -> Iterator[str]:
        """The metrics of ``results.json`` beside its entries, the images that were right, and ``metrics.jsonl``."""
        flat, told = evaluations.flat(self.entries, self.config["epochs"]), self.results["metrics"]
        for name in sorted(flat.keys() | told.keys()):
            if not _same(told.get(name), flat.get(name), 0):
                yield f"{name} is {told.get(name)} in metrics and {flat.get(name)} in evaluations"
        for entry in self.entries:
            for name in entry.get("hits", ()):
                bits, value = hits.read(self.folder, entry, name), entry["metrics"].get(name)
                if bits is None or not _same(value, float(bits.mean()), EXACT):
                    yield f"{name} is {value}, and its images say {None if bits is None else bits.mean()}"
        shown: dict[str, Any] = {}
        for row in self.rows:
            if "loss" not in row and row.get("step") == run.schedule.last_step:
                shown |= row
        for name in sorted(shown.keys() & told.keys()):
            if not _same(told[name], shown[name], 0):
                yield f"{name} is {told[name]} in results.json and {shown[name]} in metrics.jsonl"

    def schedule(self, run: Training) -> Iterator[str]:
        """The steps of all rows, and what they say of a schedule, beside ``config.yaml``."""
        steps, end = [*self.losses], run.schedule.last_step
        trained = [row for row in self.rows if "loss" in row]
        if [row.get("step") for row in trained] != sorted(steps) or not steps or steps[-1] != end or steps[0] < 1:
            yield f"the rows of metrics.jsonl do not count up to step {end}"
            return
        longest = max(self.config["log_every"], steps[0])  # a run may have been resumed with another log_every
        for before, after in pairwise(steps):
            if after - before > longest:
                yield f"no rows from step {before} to step {after}: there is one every {longest} steps"
        method, size = run.state.method, self.config["batch_size"]["size"]
        negatives = method.negatives if isinstance(method, Contrastive) and method.negatives.varies else None
        tau = _temperature(run)
        for step, row in self.losses.items():
            expected = {"epoch": run.schedule.epoch(step), "lr": run.schedule.lr_at(step - 1)}
            expected |= {} if tau is None else {"tau": float(tau(run.schedule.progress(step - 1), None))}
            if negatives is not None:
                expected["negatives_per_anchor"] = negatives.count(size, run.schedule.progress(step - 1))
            for name, value in expected.items():
                if not _same(row.get(name), value, SINGLE if name == "tau" else EXACT):
                    yield f"{name} is {row.get(name)} at step {step}, and config.yaml gives {value}"
            if not math.isfinite(row["loss"]):
                yield f"the loss is {row['loss']} at step {step}"

    def facts(self, found: Mapping[str, Any]) -> Iterator[str]:
        """The facts of ``results.json`` beside those of the same configuration here."""
        told = self.results["facts"]
        for name in sorted(told.keys() & found.keys() - {"ranks", "images_per_rank"}):
            if not _same(told[name], found[name], EXACT):
                yield f"{name} is {told[name]} in results.json, and config.yaml gives {found[name]}"


def _temperature(run: Training) -> Any:
    """The temperature as a function of progress, if it is one and the loss takes it as it is; else None."""
    method: Any = run.state.method
    if not isinstance(method, Contrastive) or type(method.loss).temperature is not Loss.temperature:
        return None
    return method.temperature if type(method.temperature) in (Fixed, Linear, Cosine) else None


def _same(one: Any, other: Any, relative: float) -> bool:
    """Whether two values are the same, numbers up to a relative difference."""
    one, other = (each.item() if isinstance(each, torch.Tensor) else each for each in (one, other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(*pair, relative) for pair in zip(one, other, strict=True))
    if not all(isinstance(each, int | float) for each in (one, other)):
        return bool(one == other)
    return (one != one and other != other) or math.isclose(one, other, rel_tol=relative, abs_tol=0.0)


def finding(name: str, wrong: Iterator[str], right: str) -> Finding:
    """The finding about some contradictions, if there are any: the first ones are named."""
    found = list(wrong)
    more = f"; {len(found) - 2} more" if len(found) > 2 else ""
    return Finding(name, "; ".join(found[:2]) + more or right, Verdict.WRONG if found else Verdict.GOOD)
