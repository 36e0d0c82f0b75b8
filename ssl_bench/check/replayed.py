"""Carry out parts of a finished run again, in a folder of their own."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ssl_bench import files
from ssl_bench.check.recorded import Recorded, State, Weights
from ssl_bench.config import schema
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.hardware import local_device
from ssl_bench.launch import ranks
from ssl_bench.record import checkpoint, results
from ssl_bench.record.content import RunResults
from ssl_bench.record.evaluations import Entry
from ssl_bench.training.checked import CheckedParts
from ssl_bench.training.engine import Training

NOTHING: dict[str, Any] = {"every": 0, "watch": 0, "baselines": [], "on": None}  # below evaluate
NOISE = {"fp64": 2.0**-46, "fp32": 2.0**-15, "fp16": 2.0**-11, "bf16": 2.0**-9}  # relative, of perturbed weights


class Trained(NamedTuple):
    """Steps that were trained again: their losses by step, and the weights after the last one."""

    losses: dict[int, float]
    weights: Weights


class Replay:
    """Carries out parts of a run again.

    Attributes:
        initial: the state before the first step, as the seed gives it.
        last_step: at which the training ends by its configuration.
        parameters: names of the trained weights.

    Raises:
        ConfigError: the run cannot be carried out on this machine.
    """

    def __init__(self, run: Recorded, scratch: Path) -> None:
        self.run, self.scratch = run, scratch
        CheckedParts(run.config).validate(run.config["devices"])
        training = Training(run.config, run.name, scratch, local_device(0, run.config["device"]))
        self.last_step = training.schedule.last_step
        self.parameters = sorted(name for name, _ in training.state.method.named_parameters())
        tf32 = training.precision.name == "fp32" and run.config["tf32"] and training.device.type == "cuda"
        self.noise = NOISE["fp16" if tf32 else training.precision.name]
        training.state.save(scratch / "initial", run.name, training.schedule.lr_at)
        self.initial = checkpoint.read(scratch / "initial" / "checkpoints" / "last.pt")

    def train(self, name: str, begin: State, stop: int) -> Trained:
        """Train from the state ``begin`` to the step ``stop``, in a folder of that ``name``.

        Raises:
            ConfigError, RunError: it cannot be carried out.
        """
        settings = {"max_steps": stop, "log_every": 1, "evaluate": NOTHING}
        folder = self._launch(name, begin, self.run.config | settings)
        rows = files.read_json_lines(folder / "metrics.jsonl")
        losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
        return Trained(losses, checkpoint.read(folder / "checkpoints" / "last.pt")["method"])

    def evaluate(self, name: str, last: State, entries: Sequence[Entry]) -> tuple[Path, list[Entry]]:
        """Compute some entries for the last state of the training; return the folder of their files, and them.

        Raises:
            ConfigError, RunError: it cannot be carried out.
        """
        folder, written = self.scratch / name, dict[str, Any]()
        for node in _rounds(entries):
            schema.check(self.run.config | {"evaluate": node})
            folder = self._launch(name, last, self.run.config | {"evaluate": node})
            written = files.read_json(folder / results.NAME, RunResults)
        return folder, written.get("evaluations", [])

    def perturbed(self, state: State, share: float = 1.0) -> State:
        """A state whose trained weights differ by a share of NOISE."""
        generator, method = torch.Generator().manual_seed(0), dict(state["method"])
        for name in self.parameters:
            noise = torch.randn(method[name].shape, generator=generator).to(method[name].dtype)
            method[name] = method[name] * (1 + share * self.noise * noise)
        return copy.copy(state) | {"method": method}

    def _launch(self, name: str, state: State, config: dict[str, Any]) -> Path:
        """Carry out a configuration from a state; return the folder."""
        folder = self.scratch / name / self.run.name
        if not (folder / "checkpoints").exists():
            checkpoint.save(folder / "checkpoints", state | {"run_id": self.run.name})
        config = config | {"pictures": False, "paths": config["paths"] | {"outputs": str(self.scratch / name)}}
        outcome = ranks.launch(config, folder, "ssl-bench verify", separate=True, quiet=True)
        if outcome.code > 128:
            raise SystemExit(outcome.code)
        if not outcome.finished:
            raise (ConfigError if outcome.code == ConfigError.exit_code else RunError)(outcome.reason)
        return folder


def _rounds(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Nodes ``evaluate`` that ask for all entries between them: one has an evaluator once, and one dataset."""
    nodes: list[dict[str, Any]] = []
    for entry in entries:
        settings = {key: value for key, value in entry["settings"].items() if key not in ("on", "labels")}
        place = {"on": entry["settings"].get("on"), "labels": [entry["settings"].get("labels", 1.0)]}
        name = entry["evaluator"]
        fitting = (node for node in nodes if place.items() <= node.items() and node.get(name, settings) == settings)
        if (node := next(fitting, None)) is None:
            nodes.append(node := NOTHING | place)
        node[name] = settings
        if entry["network"]:
            node["baselines"] = sorted({*node["baselines"], entry["network"].removeprefix("_")})
    return nodes
