"""The rows of ``metrics.jsonl``, as readers get them: what a training cannot have written is left out, and named."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from ssl_bench import files
from ssl_bench.config.identity import evaluators
from ssl_bench.disk.shapes import Bounds, misfit, said
from ssl_bench.record import units

BEYOND = 1e-6  # of the epochs of a training: rounding

# What is read of a row beside the values of its curves; "watch/..." is a look at the network, with all its values.
# "evaluations" are marks (ssl_bench.record.evaluations) of what made the metrics of a row on the way.
Row = TypedDict(
    "Row",
    {
        "step": Annotated[int, Bounds(0)],
        "epoch": NotRequired[Annotated[float, Bounds(0)]],
        "seconds": NotRequired[Annotated[float, Bounds(0)]],
        "images_per_second": NotRequired[Annotated[float, Bounds(0)]],
        "loss": NotRequired[float],
        "information": NotRequired[float],
        "evaluations": NotRequired[list[str]],
        "watch/mean_cosine": NotRequired[float],
        "watch/effective_rank": NotRequired[float],
    },
)


def read(path: Path, config: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """The rows of a file; none without a file.

    Args:
        config: of the run; None: it is not known which epochs and accuracies cannot be.
    """
    return files.read_json_lines(path, lambda row: wrong(row, config))


def wrong(row: Any, config: Mapping[str, Any] | None = None) -> str:
    """What in a row cannot be: a type, an epoch beyond the end, an accuracy beyond [0, 1]; empty: nothing."""
    if misfitting := misfit(row, Row):
        return misfitting if misfitting[0] != "=" else "no row"
    if config is None:
        return ""
    epoch, end = row.get("epoch", 0.0), config.get("epochs")
    if end is not None and epoch > end * (1 + BEYOND):
        return f"epoch={epoch:g}, and the training has {end}"
    ours = _of_package(config)
    for name, value in row.items():
        meaning = _meaning(name, ours) if "/" in name else None
        if meaning is not None and (not isinstance(value, int | float) or not meaning.possible(value)):
            return f"{name}{said(value)}, which is no share"
    return ""


def _of_package(config: Mapping[str, Any]) -> frozenset[str]:
    """The evaluators of a configuration whose numbers this package knows; a plugin's may mean anything."""
    nodes = evaluators(config.get("evaluate") or {})
    names = (name for name, node in nodes.items() if str(node.get("_target_")).startswith("ssl_bench."))
    return frozenset(["watch", *names])


@cache
def _meaning(name: str, ours: frozenset[str]) -> Any:
    """The metric of an accuracy of an evaluator of this package; None of any other value."""
    if units.evaluator_of(name) not in ours:
        return None
    metric = units.metric(name, {}, {})
    return metric if metric.unit == "share" else None
