"""All evaluators of a configuration on the networks of a run."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ssl_bench import assemble
from ssl_bench.data.arrays import Dataset
from ssl_bench.data.evalview import EvalView
from ssl_bench.device import Precision
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.subject import Subject


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
    probes = dataset.probes()
    view = EvalView(mean=config["dataset"]["mean"], std=config["dataset"]["std"], **dataset.eval_view)
    augment = (assemble.views(config) * 2)[:2]  # a pair, also where training takes one view
    metrics: dict[str, float] = {}
    artifacts: dict[str, Artifact] = {}
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
            augment=augment,
            pretrain=dataset.pretrain,
        )
        for evaluator, judging in assemble.evaluators(config).items():
            prefix = f"{evaluator}{suffix}/{name}/" if name else f"{evaluator}{suffix}/"
            for metric, value in judging.run(subject):
                if isinstance(value, Artifact):
                    artifacts[f"{prefix}{metric}"] = value
                else:
                    metrics[f"{prefix}{metric}"] = value
    return metrics, artifacts
