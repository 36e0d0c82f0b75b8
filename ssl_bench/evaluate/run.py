"""All evaluators of a configuration on the networks of a run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ssl_bench import parts as assemble
from ssl_bench.data.arrays import Dataset
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.hardware import Precision


def judge(
    config: dict[str, Any],
    dataset: Dataset,
    networks: Mapping[str, nn.Module | None],
    device: torch.device,
    precision: Precision,
) -> tuple[dict[str, float], dict[str, Artifact]]:
    """Metrics as ``<evaluator><suffix>/[<probe>/]<metric>`` for each network by its suffix; None judges raw pixels.

    Artifacts, what evaluators found that is no number, are apart under names of the same form. Every rank takes part
    and has all of them.
    """
    metrics: dict[str, float] = {}
    artifacts: dict[str, Artifact] = {}
    for place, subject in assemble.subjects(config, dataset, networks, device, precision):
        for evaluator, judging in assemble.evaluators(config).items():
            for metric, value in judging.run(subject):
                if isinstance(value, Artifact):
                    artifacts[f"{evaluator}{place}{metric}"] = value
                else:
                    metrics[f"{evaluator}{place}{metric}"] = value
    return metrics, artifacts
