"""The files of a finished run, as ``ssl-bench verify`` reads them."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.record import checkpoint, results, rows
from ssl_bench.record.evaluations import Entry
from ssl_bench.training.finished import read_config

State = dict[str, Any]  # of a checkpoint
Weights = Mapping[str, Any]  # networks, queues and memories by name


class Recorded:
    """The files of a finished run, which are read once and never written.

    Attributes:
        name: of its directory.
        config: of the training, to be carried out on this machine.
        claimed: the configuration in ``results.json``.
        ids: the run_id by what it is of: the directory, the configuration, the results and the checkpoints.
        losses: of the rows of ``metrics.jsonl`` by step: the mean since the row before.
        entries: the evaluations of ``results.json``.
        states: the checkpoints ``last.pt`` and ``previous.pt`` that can be read, by name; ``unread`` says why others
            cannot.

    Raises:
        ConfigError: there is no run, it has no results, or its configuration cannot be used here.
    """

    def __init__(self, folder: Path, changes: Mapping[str, Any]) -> None:
        self.folder, self.name = folder, folder.resolve().name
        claimed, written = read_config(folder), results.read(folder)
        if written is None or "facts" not in written:
            raise ConfigError(f"{folder} has no results: only a training that has ended can be verified")
        self.claimed = written["config"]
        self.config = _here(claimed, written.get("environment", {}), changes)
        self.entries: list[Entry] = written["evaluations"]
        recorded = [row for row in rows.read(folder / "metrics.jsonl", self.config) if "loss" in row]
        self.losses = {row["step"]: float(row["loss"]) for row in recorded}
        if list(self.losses) != sorted(self.losses) or len(self.losses) < len(recorded):
            raise ConfigError(f"{folder}/metrics.jsonl has rows twice or in another order than a training writes them")
        self.states, self.unread = dict[str, State](), dict[str, str]()
        for name in ("last.pt", "previous.pt"):
            try:
                state = checkpoint.read(folder / "checkpoints" / name)
                if type(state.get("step")) is not int or not {"method", "optimizer"} <= state.keys():
                    raise ValueError("has no state of a training")
                self.states[name] = state
            except ValueError as error:
                self.unread[name] = f"{name} {error}"
        stored: Any = files.read_yaml(folder / "config.yaml", dict, named=False)
        self.ids = {"the directory": self.name, "config.yaml": run_id(stored) if stored else "nothing"}
        self.ids |= {"results.json": written["run_id"], "the configuration in results.json": run_id(written["config"])}
        self.ids |= {name: state["run_id"] for name, state in self.states.items()}


def _here(claimed: Mapping[str, Any], environment: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with ``changes``, and as many threads and the number format as the run has had."""
    config = copy.deepcopy(dict(claimed)) | {"halt_at": None}
    config["threads"] = claimed["threads"] or environment.get("threads")
    if claimed["precision"] == "auto":  # which depends on the device
        config["precision"] = environment.get("precision", "auto")
    for key, value in changes.items():
        group, _, inner = key.rpartition(".")
        (config[group] if group else config)[inner] = value
    return config
