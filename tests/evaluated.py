"""The evaluations of ``results.json`` files that tests write by hand, of their metrics."""

from collections.abc import Mapping
from typing import Any

from ssl_bench.record.evaluations import NETWORKS, asked, filled
from ssl_bench.record.units import evaluator_of


def with_evaluations(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``results.json`` with the evaluations that its configuration asks for and those of its metrics."""
    config, metrics = content["config"], content["metrics"]
    entries = [filled(entry, metrics) for entry in asked(config)]
    names = {(entry["evaluator"], entry["network"]) for entry in entries}
    for name in metrics:
        network = next(suffix for suffix in reversed(NETWORKS) if name.partition("/")[0].endswith(suffix))
        evaluator = evaluator_of(name)
        if (evaluator, network) not in names:
            names.add((evaluator, network))
            plain = {"evaluator": evaluator, "id": evaluator, "settings": {}, "epochs": config.get("epochs")}
            same = next((entry for entry in entries if entry["evaluator"] == evaluator), plain)
            entries.append(filled({**same, "network": network}, metrics))
    return {**content, "evaluations": entries}
