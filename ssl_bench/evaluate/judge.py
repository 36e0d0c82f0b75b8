"""All evaluators of a configuration on the networks of a run."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ssl_bench import assemble
from ssl_bench.data.arrays import Dataset
from ssl_bench.data.views import EvalView
from ssl_bench.device import Precision
from ssl_bench.evaluate.subject import Split, Subject


def judge(
    config: dict[str, Any],
    dataset: Dataset,
    networks: Mapping[str, nn.Module | None],
    device: torch.device,
    precision: Precision,
) -> dict[str, float]:
    """Metrics as ``<evaluator><suffix>/<metric>`` for each network by its suffix; None judges the raw pixels.

    Every rank takes part and has all the metrics.
    """
    train, test = (Split(images.parts[0], images.labels) for images in map(dataset.split, ("train", "test")))
    view = EvalView(mean=config["dataset"]["mean"], std=config["dataset"]["std"])
    metrics: dict[str, float] = {}
    for suffix, network in networks.items():
        subject = Subject(
            network,
            train,
            test,
            num_classes=dataset.num_classes,
            view=partial(view, dtype=precision.weights),
            device=device,
            seed=config["seed"],
            autocast=precision.autocast,
        )
        for name, evaluator in assemble.evaluators(config).items():
            metrics |= {f"{name}{suffix}/{metric}": value for metric, value in evaluator.run(subject)}
    return metrics
