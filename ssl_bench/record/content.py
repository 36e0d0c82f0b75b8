"""What the files of a run contain: the types of all that is read of them, and which numbers cannot be.

Readers get at nested values without a check of their own: a file of another shape counts as missing, and is named.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from ssl_bench.config.identity import evaluation_id, evaluators, on_disk
from ssl_bench.disk.shapes import Bounds, said
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import evaluations, units
from ssl_bench.record.evaluations import Entry, Evaluated, Images, Labels

Node = dict[str, Any] | None  # of a group
Count = Annotated[int, Bounds(0)]
Duration = Annotated[float, Bounds(0)]
CHOSEN = ("loss", "dataset")  # groups by which a run is named


class Dataset(TypedDict, total=False):
    """What is read of a data set."""

    train_images: int | None
    held_out: list[int] | None


class BatchSize(TypedDict, total=False):
    """What is read of a batch size."""

    size: int


class Evaluate(TypedDict, total=False):
    """Settings of ``evaluate`` that are those of no evaluator."""

    every: int
    watch: int
    baselines: list[str]
    on: Images | list[Images | None] | None
    labels: list[Labels]


class Config(TypedDict, total=False):
    """The keys of a run's configuration that are read, of ``config.yaml`` and of ``results.json``; some lack a part."""

    choices: dict[str, str]
    name: str
    seed: int
    scale: str
    epochs: Count
    max_steps: int | None
    threads: int | None
    paths: dict[str, str]
    plugins: dict[str, str]
    init: Node
    batch_size: BatchSize | None
    dataset: Dataset | None
    backbone: Node
    framework: Node
    loss: Node
    negatives: Node
    temperature: Node
    optimizer: Node
    evaluate: Evaluate
    tracking: Node
    steady: list[str]


class Environment(TypedDict, total=False):
    """What is read of the environment of a result."""

    device: str
    instructions: str
    threads: int | None
    ranks: int
    torch: str | None
    images: str | None
    cuda: str | None
    git: str | None
    precision: str


class Facts(TypedDict, total=False):
    """What is read of the facts of a run."""

    steps: Count
    lr: float
    parameters: int
    train_images: int
    negatives_per_anchor: float
    negatives_per_anchor_at_end: float


Units = dict[str, dict[str, Metric]]


class RunResults(TypedDict):
    """Content of ``results.json``, beside the names of classes."""

    run_id: str
    name: NotRequired[str]
    config: Config
    metrics: dict[str, float]
    seconds: Duration
    evaluations: list[Evaluated]
    environment: NotRequired[Environment]
    facts: NotRequired[Facts]
    warnings: NotRequired[list[str]]
    units: NotRequired[Units]


class Failure(TypedDict):
    """Content of a run's ``failed.json``: why it failed, in a sentence."""

    reason: str


def unusable(config: Mapping[str, Any]) -> str:
    """What is missing in a configuration of the shape ``Config``; empty: nothing."""
    choices = config.get("choices", {})
    if missing := next((group for group in CHOSEN if config.get(group) and group not in choices), None):
        return f"config.choices.{missing} is missing"
    for name, node in evaluators(config.get("evaluate", {})).items():
        if not isinstance(target := node.get("_target_", "a.b"), str) or "." not in target:
            return f"config.evaluate.{name}._target_{said(target)}"
    return ""


def impossible(content: Mapping[str, Any]) -> str:
    """What in results of the shape ``RunResults`` cannot be; empty: nothing."""
    if not content["config"]:
        return "config={}"
    if wrong := unusable(content["config"]):
        return wrong
    if (name := content.get("name")) != content["config"].get("name", name) and name is not None:
        return f"config.name{said(content['config'].get('name'))}, and name={name}"
    recorded, end = content["evaluations"], content["config"].get("epochs")
    identified: Entry = {}  # the entries of one evaluation stand beside each other, one for each network
    for place, entry in enumerate(recorded):
        if any(entry.get(key) != identified.get(key) for key in ("id", "evaluator", "settings", "images")):
            if wrong := _other_identity(entry):
                return f"evaluations[{place}].{wrong}, which is not that of its settings"
            identified = entry
        if wrong := _impossible_entry(entry, content.get("units", {}), end):
            return f"evaluations[{place}].{wrong}"
    numbers, metrics = evaluations.flat(recorded, end), content["metrics"]
    by_version = (evaluations.flat(recorded, end, before) for before in (False, True))
    if json.dumps(metrics, sort_keys=True) in (json.dumps(named, sort_keys=True) for named in by_version):  # NaN is NaN
        return ""
    names = [*numbers, *(name for name in metrics if name not in numbers)]
    name = next((name for name in names if repr(numbers.get(name)) != repr(metrics.get(name))), "")
    return f"metrics.{name}{said(metrics.get(name))}, and {numbers.get(name)} in its evaluations"


def _other_identity(entry: Entry) -> str:
    """What identifies an entry, if its settings give something else; images need not be known."""
    images, given = entry.get("images"), on_disk({"dataset": entry["settings"].get("on")})
    if images is not None and images != given.get("images"):
        return f"images{said(images)}"
    return "" if entry["id"] == evaluation_id(entry["evaluator"], entry["settings"]) else f"id={entry['id']}"


def _impossible_entry(entry: Entry, recorded: units.Units, end: int | None) -> str:
    """What in an entry cannot be: it has numbers of another evaluator, or accuracies beyond [0, 1]."""
    evaluator, epochs = entry["evaluator"], entry["epochs"]
    if epochs is not None and end is not None and epochs > end:
        return f"epochs={epochs}, and the training has {end}"
    start, node = f"{evaluator}{entry['network']}/", {evaluator: entry["settings"]}
    for name, value in entry["metrics"].items():
        if not name.startswith(start):
            return f"metrics.{name} does not begin with {start}"
        if not 0 <= value <= 1 and not units.metric(name, recorded, node).possible(value):
            return f"metrics.{name}={value}, which is no share"
    return ""
