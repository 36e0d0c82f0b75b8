"""The evaluations of a run: an entry in its ``results.json`` for each evaluator with its settings and each network.

An entry is a mapping, as JSON has it: :class:`Evaluated`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from ssl_bench.config.build import find_target
from ssl_bench.config.identity import (
    datasets_of,
    evaluation_id,
    evaluators,
    name_of_labels,
    on_disk,
    settings_of_evaluation,
)
from ssl_bench.config.labelled import with_labels
from ssl_bench.disk.shapes import Bounds
from ssl_bench.errors import ConfigError
from ssl_bench.record.units import evaluator_of

Entry = Mapping[str, Any]
Key = tuple[str, str]  # of a number: its metric, and the key of what made it
NETWORKS = ("", "_init", "_raw")


class Images(TypedDict):
    """What is read of a node of ``evaluate.on``."""

    dataset: str


class ListOfImages(TypedDict):
    """One of ``evaluate.labels``: a file, its hash and how many images it lists."""

    file: str
    content: str
    images: NotRequired[int]


Labels = Annotated[float, Bounds(0, 1)] | ListOfImages


class Settings(TypedDict, total=False):
    """What is read of the settings of an evaluation."""

    _target_: str
    on: Images | None
    labels: Labels


class Hits(TypedDict):
    """Of an accuracy: a file in the run's folder with a bit for each test image, and their number."""

    file: str
    images: Annotated[int, Bounds(1)]


class Evaluated(TypedDict):
    """An entry of ``results.json``.

    Attributes:
        evaluator: name below ``evaluate``.
        id: identity of the evaluator and its settings (:func:`ssl_bench.config.identity.evaluation_id`).
        settings: the evaluator's node of the configuration.
        images: hash of the prepared images of ``evaluate.on``; null: those of the training, or not known.
        network: "" the trained one, "_init" at initialisation, "_raw" none: pixels.
        epochs: length of the training.
        metrics: numbers by name, which begins with the evaluator's: knn/top1, knn_init/top1.
        hits: of accuracies of the trained network by name; an image's bit is 1 if it was right.
    """

    evaluator: str
    id: str
    settings: Settings
    images: NotRequired[str | None]
    network: Literal["", "_init", "_raw"]
    epochs: Annotated[int, Bounds(0)] | None
    metrics: dict[str, float]
    hits: NotRequired[dict[str, Hits]]


def asked(config: Mapping[str, Any]) -> list[Entry]:
    """Entries without metrics for all that a configuration asks for; none if it evaluates nothing."""
    node = config.get("evaluate")
    if not isinstance(node, Mapping):
        return []
    baselines = [f"_{baseline}" for baseline in node.get("baselines", [])]
    places = [(on, labels) for on in datasets_of(node) for labels in node.get("labels", [1.0])]
    made = list[Entry]()
    for name, evaluator in evaluators(node).items():
        for on, labels in places:
            part = bool(name_of_labels(labels))
            if part and not find_target(evaluator, f"evaluate.{name}").takes_labels:
                continue
            of_labels = with_labels(name, evaluator, on, labels, config)
            settings = {**of_labels, **({"on": on} if on else {}), **({"labels": labels} if part else {})}
            entry: dict[str, Any] = {"evaluator": name, "id": evaluation_id(name, settings), "settings": settings}
            entry |= {"images": on_disk({"dataset": on}).get("images")}
            networks = [network for network in NETWORKS if not network or network in baselines]
            made += [{**entry, "network": network, "epochs": config.get("epochs")} for network in networks]
    return made


def made_by(entry: Entry) -> dict[str, Any]:
    """What made the numbers of an entry beside the network: equal for equal evaluations of equal images."""
    settings = settings_of_evaluation(entry["evaluator"], entry["settings"])
    return {**{key: entry[key] for key in ("evaluator", "id")}, "settings": settings, "images": entry.get("images")}


def as_key(made_by: Mapping[str, Any]) -> str:
    """What made a number as a text, equal for equal evaluations."""
    return json.dumps(made_by, sort_keys=True)


def mark(entry: Entry) -> str:
    """The identity of an evaluation and of its images, as a row of ``metrics.jsonl`` has it."""
    return " ".join(filter(None, (entry["id"], entry.get("images"))))


def node(made_by: Mapping[str, Any]) -> dict[str, Any]:
    """The node ``evaluate`` of a configuration with what made a number."""
    return {made_by["evaluator"]: made_by["settings"]}


def on_the_way(config: Mapping[str, Any], metrics: Mapping[str, float] = {}) -> list[Entry]:
    """The entries of an unfinished run, with the metrics that it has recorded so far; none if it cannot be known."""
    try:
        entries: list[Entry] = [{**entry, "metrics": {}} for entry in asked(config) if not entry["network"]]
    except (ConfigError, ImportError):
        return []
    for name, value in metrics.items():
        if entry := made(name, entries):
            entry["metrics"][name] = value
    return entries


def made(name: str, entries: Iterable[Entry]) -> Entry | None:
    """The first of some entries to whose evaluator, images and labels the plain name of a metric belongs."""
    start, parts = name.partition("/")[0], name.split("/")[1:]
    suffixes = "|".join(filter(None, NETWORKS))
    fitting = [
        entry
        for entry in entries
        if re.fullmatch(f"{re.escape(entry['evaluator'])}({suffixes})?", start)
        and all(part in parts for part in _data_names(entry))
    ]
    return max(fitting, key=lambda entry: len(_data_names(entry)), default=None)


def _data_names(entry: Entry) -> list[str]:
    """What the names of an entry's metrics say of its images and labels."""
    on, labels = entry["settings"].get("on"), entry["settings"].get("labels", 1.0)
    return [part for part in (on["dataset"] if on else "", name_of_labels(labels)) if part]


def names(made_by: Mapping[str, Mapping[Any, Mapping[str, Any]]]) -> dict[tuple[str, Any], str]:
    """A name for each number of a set in which it means one thing.

    Args:
        made_by: by metric, then by a key, what made it.
    """
    named: dict[tuple[str, Any], str] = {}
    for metric, of_metric in made_by.items():
        for key, difference in zip(of_metric, _differences(list(of_metric.values())), strict=True):
            named[metric, key] = _with_difference(metric, difference)
    return named


def after(recorded: Iterable[Entry], epochs: int | None) -> list[Entry]:
    """The entries of the network after ``epochs``."""
    return [entry for entry in recorded if entry["epochs"] == epochs]


def missing(recorded: Iterable[Entry], config: Mapping[str, Any]) -> list[Entry]:
    """Entries without metrics for what a configuration asks for and the ``recorded`` entries do not have."""
    entries = list(recorded)
    return [entry for entry in asked(config) if not any(_same(there, entry) for there in entries)]


def of(recorded: Iterable[Entry], config: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that a configuration asks for, by their plain names, as far as they are ``recorded``."""
    return {name: value for entry in found(recorded, config) for name, value in entry["metrics"].items()}


def shown(recorded: Iterable[Entry], config: Mapping[str, Any]) -> dict[str, float]:
    """All metrics after the epochs of a configuration, by the names that the table of runs has for them in this run.

    The plain name of a metric that several evaluations made is that of the one that the configuration asks for.
    """
    values, made = dict[tuple[str, str], float](), dict[str, dict[str, Mapping[str, Any]]]()
    for entry in (entries := after(recorded, config.get("epochs"))):
        for metric, value in entry["metrics"].items():
            made.setdefault(metric, {})[mark(entry)] = made_by(entry)
            values[metric, mark(entry)] = value
    return {name: values[key] for key, name in names(made).items()} | of(entries, config)


def found(recorded: Iterable[Entry], config: Mapping[str, Any]) -> list[Entry]:
    """Those of the ``recorded`` entries that a configuration asks for."""
    wanted = asked(config)
    return [entry for entry in recorded if any(_same(entry, one) for one in wanted)]


def filled(entry: Entry, metrics: Mapping[str, float]) -> Entry:
    """The entry with those of the ``metrics`` that are its own."""
    start = f"{entry['evaluator']}{entry['network']}/"
    return {**entry, "metrics": {name: value for name, value in metrics.items() if name.startswith(start)}}


def flat(recorded: Iterable[Entry], epochs: int | None, before: bool = False) -> dict[str, float]:
    """All metrics after ``epochs`` by one name each, that of :func:`named`, or ``before`` that of version 0.3.0."""
    kept, name_of = after(recorded, epochs), _named_before if before else named
    return {name_of(name, entry, kept): value for entry in kept for name, value in entry["metrics"].items()}


def named(name: str, entry: Entry, recorded: Iterable[Entry]) -> str:
    """The name of a metric or an artifact of an entry among all that are ``recorded``.

    Of several settings of an evaluator the first on data of a name has the plain name, knn/top1; the others name what
    differs from it: knn[k=5]/top1. That may be the data: knn[labels=0123456789abcdef]/labels_few/top1.
    """
    start, data = entry["evaluator"], _data_names(entry)
    first = next(other for other in recorded if other["evaluator"] == start and _data_names(other) == data)
    if same(entry, first):
        return name
    with_images = None not in (entry.get("images"), first.get("images"))
    settings = [_settings(one) | ({"images": one["images"]} if with_images else {}) for one in (entry, first)]
    return f"{start}[{_difference(*settings)}]{name.removeprefix(start)}"


def _named_before(name: str, entry: Entry, recorded: Iterable[Entry]) -> str:
    """As :func:`named`, in results of version 0.3.0: of other data of the same name the name said nothing."""

    def data(of: Entry) -> Any:
        return of["settings"].get("on"), of["settings"].get("labels", 1.0)

    start, settings = entry["evaluator"], entry["settings"]
    first = next(other for other in recorded if other["evaluator"] == start and data(other) == data(entry))
    plain = first["settings"]
    texts = list[str]()
    for key in sorted(settings.keys() | plain.keys()):
        value = settings.get(key)
        if value != plain.get(key):
            text = value.rpartition(".")[2] if isinstance(value, str) else str(value).replace(" ", "").replace("'", "")
            texts.append(f"{key}={text}")
    return name if entry["id"] == first["id"] else f"{start}[{','.join(texts)}]{name.removeprefix(start)}"


def _same(one: Entry, other: Entry) -> bool:
    """Whether two entries are of the same evaluation of the same network."""
    return all(one[key] == other[key] for key in ("network", "epochs")) and same(one, other)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two entries, or what made two numbers, are one evaluation; unknown images count as the same."""
    images = one.get("images"), other.get("images")
    return bool(one["id"] == other["id"]) and (None in images or images[0] == images[1])


def _settings(entry: Entry) -> dict[str, Any]:
    """The settings of an entry without the places of its data, those of its data by their paths."""
    settings = settings_of_evaluation(entry["evaluator"], entry["settings"])
    on = settings.pop("on", None)
    return settings | dict(_flat({"on": on} if on else {}))


def _difference(settings: Mapping[str, Any], plain: Mapping[str, Any]) -> str:
    """The settings that are not those of ``plain``, in a line."""
    names = sorted(settings.keys() | plain.keys())
    return ",".join(f"{n}={_short(n, settings.get(n))}" for n in names if settings.get(n) != plain.get(n))


def _with_difference(metric: str, difference: str) -> str:
    """A metric with what distinguishes its evaluation: knn_init/top1 is knn[k=5]_init/top1."""
    if not difference:
        return metric
    evaluator = evaluator_of(metric)
    return f"{evaluator}[{difference}]{metric.removeprefix(evaluator)}"


def _differences(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """What distinguishes each of some evaluations from the others; an empty text for a single one."""
    if len(evaluations) == 1:
        return [""]
    rows = [dict(_flat({**made_by["settings"], "images": made_by["images"]})) for made_by in evaluations]
    names = dict.fromkeys(name for row in rows for name in row)
    differing = [name for name in names if len({repr(row.get(name)) for row in rows}) > 1]
    return [",".join(f"{name}={_short(name, row.get(name))}" for name in differing) for row in rows]


def _flat(node: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """The values in a node by their paths."""
    if isinstance(node, Mapping) and node:
        for name, part in node.items():
            yield from _flat(part, f"{path}.{name}" if path else str(name))
    else:
        yield path, node


def _short(setting: str, value: Any) -> str:
    """A value in a name: of a class its own name, of a file that without its folders; a name has one slash."""
    text = str(value).replace(" ", "").replace("'", "").rpartition("/")[2]
    return text.rpartition(".")[2] if setting.endswith("_target_") else text
