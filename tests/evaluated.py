"""Evaluations for ``results.json`` files that tests write by hand, and the targets of evaluators."""

from collections.abc import Mapping
from typing import Any

import torch

from ssl_bench.config.identity import evaluation_id
from ssl_bench.evaluate.target import Target
from ssl_bench.record.evaluations import NETWORKS, asked, evaluator_of, filled
from ssl_bench.training import build
from ssl_bench.training.precision import Precision


def with_evaluations(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``results.json`` with the evaluations that its configuration asks for, and their metrics."""
    config, metrics = content["config"], dict(content["metrics"])
    entries = [filled(entry, metrics) for entry in asked(config)]
    for entry in entries:
        metrics = {name: value for name, value in metrics.items() if name not in entry["metrics"]}
    for name, value in metrics.items():
        network = next(suffix for suffix in reversed(NETWORKS) if name.partition("/")[0].endswith(suffix))
        evaluator = evaluator_of(name)
        plain: dict[str, Any] = {"evaluator": evaluator, "id": evaluation_id(evaluator, {}), "settings": {}}
        plain["epochs"] = config.get("epochs")
        same = next((entry for entry in entries if entry["evaluator"] == evaluator), plain)
        entries.append({**same, "network": network, "metrics": {name: value}})
    return {**content, "evaluations": entries}


def targets_of(run: build.Run, networks: Mapping[str, Any]) -> dict[str, Target]:
    """The targets of the evaluators of a run on the CPU, by the middle of the names of their metrics."""
    cells = build.cells(run, networks, torch.device("cpu"), Precision.of("fp32", False))
    return {infix: target for _, _, targets in cells for infix, target in targets}
