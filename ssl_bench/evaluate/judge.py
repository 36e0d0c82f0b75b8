"""All evaluators of a configuration on the networks of a run."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ssl_bench import assemble
from ssl_bench.data.arrays import Dataset
from ssl_bench.data.views import EvalView
from ssl_bench.device import Precision
from ssl_bench.evaluate.subject import Subject


def judge(
    config: dict[str, Any],
    dataset: Dataset,
    networks: Mapping[str, nn.Module | None],
    device: torch.device,
    precision: Precision,
) -> dict[str, float]:
    """Metrics as ``<evaluator><suffix>/[<probe>/]<metric>`` for each network by its suffix; None judges raw pixels.

    Every rank takes part and has all the metrics.
    """
    probes = dataset.probes()
    view = EvalView(mean=config["dataset"]["mean"], std=config["dataset"]["std"])
    metrics: dict[str, float] = {}
    for (name, probe), (suffix, network) in itertools.product(probes.items(), networks.items()):
        subject = Subject(
            network,
            probe.train,
            probe.test,
            num_classes=probe.num_classes,
            view=partial(view, dtype=precision.weights),
            device=device,
            seed=config["seed"],
            autocast=precision.autocast,
        )
        for evaluator, judging in assemble.evaluators(config).items():
            prefix = f"{evaluator}{suffix}/{name}/" if name else f"{evaluator}{suffix}/"
            metrics |= {f"{prefix}{metric}": value for metric, value in judging.run(subject)}
    return metrics
