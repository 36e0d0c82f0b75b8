"""Run evaluators on targets and collect their results.

An evaluator has a name, such as ``knn``, that begins its metrics. A target has an infix that follows it: ``/`` for the
trained network, ``_init/`` and ``_raw/`` for the baselines, and the name of a probe after it, such as ``/digit20/``.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from ssl_bench.data.splits import few
from ssl_bench.errors import ConfigError, InvalidValue, RunError
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.metric import declared
from ssl_bench.evaluate.target import Evaluator, Target

log = logging.getLogger("ssl_bench")
Results = tuple[dict[str, float], dict[str, Artifact]]


def run_evaluators(evaluators: Mapping[str, Evaluator], targets: Iterable[tuple[str, Target]]) -> Results:
    """Run every evaluator on every target. All ranks take part, and all have the results.

    Args:
        targets: each with its infix.

    Returns:
        The metrics by name (``knn_init/top1``), and the artifacts by name.

    Raises:
        ConfigError: an evaluator refuses a target; the sentence begins with ``evaluate.<name>``.
        RunError: the GPU has too little memory, or an accuracy is not between 0 and 1.
    """
    metrics: dict[str, float] = {}
    artifacts: dict[str, Artifact] = {}
    for infix, target in targets if evaluators else ():
        for name, evaluator in _fitting(evaluators, target):
            with _refusals_of(name):
                evaluator.check(target)
                results = dict(evaluator.run(target))
            for metric, value in results.items():
                if isinstance(value, Artifact):
                    artifacts[f"{name}{infix}{metric}"] = value
                    continue
                meaning = declared(evaluator.metrics, metric)
                if meaning is not None and not meaning.possible(value):
                    remedy = "return a share of 1, or declare it in `metrics` as a number"
                    raise RunError(f"evaluate.{name}: {metric}={value:g} is no share between 0 and 1: {remedy}")
                metrics[f"{name}{infix}{metric}"] = value
    return metrics, artifacts


def check_evaluators(evaluators: Mapping[str, Evaluator], targets: Iterable[tuple[str, Target]]) -> None:
    """Call ``check`` of every evaluator with every target, and log the warnings.

    Raises:
        ConfigError: naming the key of each evaluator that refuses a target, so that all can be set at once.
        RunError: as :func:`run_evaluators`.
    """
    for infix, target in targets if evaluators else ():
        refused = list[ConfigError]()
        for name, evaluator in _fitting(evaluators, target):
            try:
                with _refusals_of(name):
                    evaluator.check(target)
            except ConfigError as error:
                refused.append(error)
        if refused:
            raise ConfigError("; ".join(map(str, refused))) if refused[1:] else refused[0]
        for sentence in evaluator_warnings(evaluators, [(infix, target)]):
            log.warning("%s", sentence)


def evaluator_warnings(evaluators: Mapping[str, Evaluator], targets: Iterable[tuple[str, Target]]) -> list[str]:
    """The warnings of every evaluator about every target, without repetitions; they begin with ``evaluate.<name>.``.

    If classifiers are evaluated, another sentence names the classes that no labelled training image has.
    """
    sentences = list[str]()
    for infix, target in targets if evaluators else ():
        sentences += [f"evaluate.{name}.{s}" for name, each in evaluators.items() for s in each.warnings(target)]
        if any(evaluator.takes_labels for evaluator in evaluators.values()) and (lost := target.unlabelled()):
            where = f"{infix.strip('/')}: " if infix.strip("/") else ""
            what = f"no training image has a label of {len(lost)} of {target.num_classes} classes ({few(lost)})"
            sentences.append(f"{where}{what}, so no classifier can name them")
    return list(dict.fromkeys(sentences))


def _fitting(evaluators: Mapping[str, Evaluator], target: Target) -> list[tuple[str, Evaluator]]:
    """The evaluators without those that need a network, for raw pixels."""
    return [(name, each) for name, each in evaluators.items() if target.network is not None or not each.needs_network]


@contextmanager
def _refusals_of(name: str) -> Iterator[None]:
    """Put ``evaluate.<name>`` before the refusals of an evaluator, and explain an error of insufficient GPU memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = f"evaluate.{name} needs more memory than the GPU has ({str(error).splitlines()[0]})"
        remedy = "on a larger GPU the same command continues, and `ssl-bench evaluate` runs other evaluators here"
        raise RunError(f"{reason}; the trained weights are saved: {remedy}") from error
    except InvalidValue as refusal:
        raise refusal.within(f"evaluate.{name}") from refusal
    except ConfigError as error:
        raise ConfigError(f"evaluate.{name}: {error}") from error
