"""Run evaluators on targets and collect what they find."""

from collections.abc import Iterable, Mapping

from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.target import Evaluator, Target

Findings = tuple[dict[str, float], dict[str, Artifact]]


def run_evaluators(evaluators: Mapping[str, Evaluator], targets: Iterable[tuple[str, Target]]) -> Findings:
    """Run every evaluator on every target.

    All ranks take part, and all have the results.

    Args:
        evaluators: by the name that begins their metrics, such as ``knn``.
        targets: each with what follows that name: ``/`` for the trained network, ``_init/`` and ``_raw/`` for the
            baselines, and the name of a probe after it, such as ``/digit20/``.

    Returns:
        The metrics by name (``knn_init/top1``), and the artifacts by name.
    """
    metrics: dict[str, float] = {}
    artifacts: dict[str, Artifact] = {}
    for infix, target in targets:
        for name, evaluator in evaluators.items():
            for found, value in evaluator.run(target):
                if isinstance(value, Artifact):
                    artifacts[f"{name}{infix}{found}"] = value
                else:
                    metrics[f"{name}{infix}{found}"] = value
    return metrics, artifacts
