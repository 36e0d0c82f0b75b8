"""The evaluations of a run: an entry in its ``results.json`` for each evaluator with its settings and each network.

An entry is a mapping, as JSON has it: :class:`Evaluated`. Beside it stand the ``units`` of its metrics, {evaluator:
{name: {"unit", "better", "of"}}}; in ``<run>/hits/`` a bit for each test image says whether it was classified
correctly: with those of two runs an interval covers other images, too, and not only other seeds.

A baseline is evaluated on the raw pixels or on the network at initialisation. Its numbers depend on the evaluator, the
weights, the dataset and the seed, not on how the run is trained: runs that have the same ones compute them once, in
``<outputs>/.baselines/<digits>.json``.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta, convert

from ssl_bench import files
from ssl_bench.config import identity
from ssl_bench.config.build import find_target
from ssl_bench.config.identity import datasets_of, leaves, name_of_labels
from ssl_bench.config.labelled import with_labels
from ssl_bench.evaluate.metric import ACCURACIES, NUMBER, Declared, Metric, declared

HITS, BASELINES = "hits", ".baselines"
# Groups and keys that an evaluation of a baseline depends on.
OF_BASELINE = ("dataset", "augment", "backbone", "head", "seed", "tf32", "plugins")
Entry = Mapping[str, Any]
NETWORKS = ("", "_init", "_raw")


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
        hits: of accuracies of the trained network by name: the ``file`` in the run's folder with a bit for each test
            image, 1 if it was right, and the number of ``images``.
    """

    evaluator: str
    id: str
    settings: dict
    images: NotRequired[str | None]
    network: Literal["", "_init", "_raw"]
    epochs: Annotated[int, Meta(ge=0)] | None
    metrics: dict[str, float]
    hits: NotRequired[dict[str, dict[str, Any]]]


def asked(config: Mapping[str, Any]) -> list[Entry]:
    """Entries without metrics for all evaluations that a configuration requests."""
    node = config.get("evaluate", {})
    networks = ["", *(f"_{name}" for name in ("init", "raw") if name in node.get("baselines", []))]
    places = [(on, labels) for on in datasets_of(node) for labels in node.get("labels", [1.0])]
    made = list[Entry]()
    for name, evaluator in identity.evaluators(node).items():
        for on, labels in places:
            part = bool(name_of_labels(labels))
            if part and not find_target(evaluator, f"evaluate.{name}").takes_labels:
                continue
            of_labels = with_labels(name, evaluator, on, labels, config)
            settings = {**of_labels, **({"on": on} if on else {}), **({"labels": labels} if part else {})}
            entry = dict[str, Any](evaluator=name, id=identity.evaluation_id(name, settings), settings=settings)
            entry |= {"images": identity.content_hashes({"dataset": on}).get("images"), "epochs": config.get("epochs")}
            made += [{**entry, "network": network} for network in networks]
    return made


def made_by(entry: Entry) -> dict[str, Any]:
    """The evaluator, settings and images that made an entry's numbers: equal for equal evaluations of equal images."""
    settings = identity.settings_of_evaluation(entry["evaluator"], entry["settings"])
    return {**{key: entry[key] for key in ("evaluator", "id")}, "settings": settings, "images": entry.get("images")}


def mark(entry: Entry) -> str:
    """The identity of an evaluation and of its images, as a row of ``metrics.jsonl`` has it."""
    return " ".join(filter(None, (entry["id"], entry.get("images"))))


def made(name: str, entries: Iterable[Entry]) -> Entry | None:
    """The first entry whose evaluator, images and labels fit the plain name of a metric; None if none does."""
    start, *parts = name.split("/")
    of_evaluator = (entry for entry in entries if start.removeprefix(entry["evaluator"]) in NETWORKS)
    fitting = [entry for entry in of_evaluator if {*_data_names(entry)} <= {*parts}]
    return max(fitting, key=lambda entry: len(_data_names(entry)), default=None)


def _data_names(entry: Entry) -> list[str]:
    """The parts of an entry's metric names that stand for its images and labels, such as ``labels0.1``."""
    on, labels = entry["settings"].get("on"), entry["settings"].get("labels", 1.0)
    return [part for part in (on["dataset"] if on else "", name_of_labels(labels)) if part]


def names(made_by: Mapping[str, Mapping[Any, Mapping[str, Any]]]) -> dict[tuple[str, Any], str]:
    """Names that distinguish numbers: knn_init/top1 becomes knn[k=5]_init/top1 if several evaluations have made it.

    Args:
        made_by: by metric, then by a key, the evaluation (:func:`made_by`).
    """
    named: dict[tuple[str, Any], str] = {}
    for metric, of_metric in made_by.items():
        start = evaluator_of(metric)
        for key, difference in zip(of_metric, _differences(list(of_metric.values())), strict=True):
            named[metric, key] = f"{start}[{difference}]{metric.removeprefix(start)}" if difference else metric
    return named


def after(recorded: Iterable[Entry], epochs: int | None) -> list[Entry]:
    """The entries of the network after ``epochs``."""
    return [entry for entry in recorded if entry["epochs"] == epochs]


def missing(recorded: Iterable[Entry], config: Mapping[str, Any]) -> list[Entry]:
    """Entries without metrics for the evaluations that a configuration requests and that are not ``recorded``."""
    entries = list(recorded)
    return [entry for entry in asked(config) if not any(_same(one, entry) for one in entries)]


def of(recorded: Iterable[Entry], config: Mapping[str, Any]) -> dict[str, float]:
    """The ``recorded`` metrics of the evaluations that a configuration requests, by their plain names."""
    return {name: value for entry in requested(recorded, config) for name, value in entry["metrics"].items()}


def flat(recorded: Iterable[Entry], epochs: int | None) -> dict[str, float]:
    """All metrics after ``epochs``: the first evaluation has the plain name knn/top1, others names as knn[k=5]/top1."""
    metrics = dict[str, float]()
    for metric, name, value in _named(after(recorded, epochs)):
        metrics[name if metric in metrics else metric] = value
    return metrics


def shown(recorded: Sequence[Entry], config: Mapping[str, Any]) -> dict[str, float]:
    """All metrics after the epochs of a configuration; the evaluation that it requests has the plain name."""
    return flat([*requested(recorded, config), *recorded], config.get("epochs"))


def _named(entries: Iterable[Entry]) -> list[tuple[str, str, float]]:
    """The numbers of entries: metric, name among all of them, value."""
    found = {(metric, mark(one)): (one, value) for one in entries for metric, value in one["metrics"].items()}
    made = dict[str, dict[str, Mapping[str, Any]]]()
    for (metric, key), (entry, _) in found.items():
        made.setdefault(metric, {})[key] = made_by(entry)
    named = names(made)
    return [(key[0], named[key], value) for key, (_, value) in found.items()]


def requested(recorded: Iterable[Entry], config: Mapping[str, Any]) -> list[Entry]:
    """The ``recorded`` entries of the evaluations that a configuration requests."""
    entries = asked(config)
    return [entry for entry in recorded if any(_same(entry, one) for one in entries)]


def filled(entry: Entry, metrics: Mapping[str, float]) -> Entry:
    """The entry with the ``metrics`` that its evaluator computed for its network."""
    start = f"{entry['evaluator']}{entry['network']}/"
    return {**entry, "metrics": {name: value for name, value in metrics.items() if name.startswith(start)}}


def named(name: str, entry: Entry, recorded: Iterable[Entry]) -> str:
    """The name of an artifact of an entry among all that are ``recorded``, as :func:`names` has it."""
    start, data = entry["evaluator"], _data_names(entry)
    same_data = [other for other in recorded if other["evaluator"] == start and _data_names(other) == data]
    return names({name: {mark(other): made_by(other) for other in same_data}})[name, mark(entry)]


def _same(one: Entry, other: Entry) -> bool:
    """Whether two entries are of one evaluation of one network; unknown images count as the same."""
    images = {one.get("images"), other.get("images")}
    return all(one[key] == other[key] for key in ("network", "epochs", "id")) and (None in images or len(images) == 1)


def _differences(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings of each evaluation in which evaluations differ, as ``k=5``; empty texts if there is only one."""
    rows = [dict(leaves({**made_by["settings"], "images": made_by["images"]})) for made_by in evaluations]
    names = dict.fromkeys(name for row in rows for name in row)
    differing = [name for name in names if len({repr(row.get(name)) for row in rows}) > 1]
    return [",".join(f"{name}={_short(name, row.get(name))}" for name in differing) for row in rows]


def _short(setting: str, value: Any) -> str:
    """A value without slashes, for a name: a class without its module, a file without its folders."""
    text = str(value).replace(" ", "").replace("'", "").rpartition("/")[2]
    return text.rpartition(".")[2] if setting.endswith("_target_") else text


# ---- units


def recorded_units(evaluators: Mapping[str, Declared], names: Iterable[str]) -> dict[str, dict[str, dict[str, str]]]:
    """The units of some metrics, to be recorded.

    Args:
        evaluators: what each declares, by name.
        names: of the metrics that there are.
    """
    there = {evaluator_of(name) for name in names}
    return {name: {p: vars(m) for p, m in of.items()} for name, of in evaluators.items() if name in there}


def metric_of(name: str, units: Any) -> Metric:
    """The meaning of a number of a run; ``NUMBER`` if it is not known.

    Args:
        units: the units in ``results.json``; empty or None: there are none, and a name such as top1 means an accuracy.
    """
    recorded = convert((units or {}).get(evaluator_of(name), {}), dict[str, Metric])
    return declared(recorded, name) or declared(ACCURACIES, name) or NUMBER


@cache
def evaluator_of(name: str) -> str:
    """The evaluator of a metric: ``knn`` of ``knn_init/top1`` and ``knn[k=5]/top1``."""
    return re.sub(r"(_init|_raw)?(\[.*\])?(_init|_raw)?/.*", "", name, flags=re.DOTALL)


def is_baseline(name: str) -> bool:
    """Whether a metric is that of a network at initialisation or of raw pixels."""
    return re.sub(r"\[.*\]", "", name).partition("/")[0].endswith(("_init", "_raw"))


def main(names: Iterable[str], units: Any) -> list[str]:
    """The main metric of each evaluator and probe: top1, or else its first metric that says what is better."""
    by_probe: dict[str, str] = {}
    for name in names:
        if not is_baseline(name) and metric_of(name, units).sign:
            start, _, end = name.rpartition("/")
            by_probe[start] = name if end == "top1" else by_probe.get(start, name)
    return list(by_probe.values())


# ---- hits


def write_hits(folder: Path, entry: Entry) -> Entry:
    """Write which test images are classified correctly into the run's folder; the returned entry names the files.

    An accuracy that has this for its images is an ``evaluate.accuracy.Accuracy``.
    """
    import numpy as np

    records = {}
    metrics = entry["metrics"].items() if not entry["network"] else ()
    for name, right in ((name, value.right) for name, value in metrics if hasattr(value, "right")):
        of = "_".join(str(part) for part in (entry["id"], entry.get("images"), entry["epochs"]) if part is not None)
        path = f"{HITS}/{name.replace('/', '-')}_{of}.bits"
        files.make_folder(folder / HITS)
        files.write_bytes(folder / path, np.packbits(right.cpu().numpy()).tobytes())
        records[name] = {"file": path, "images": len(right)}
    return {**entry, "hits": records} if records else entry


def read_hits(folder: Path, entry: Entry, metric: str) -> Any:
    """Which test images are classified correctly, 0 or 1 [N]; None unless a file of the run says it and fits."""
    import numpy as np

    try:
        record = entry["hits"][metric]
        name = os.path.basename(record["file"])
        packed = files.read_bytes(files.of_run(f"{files.of_run(folder / HITS)}/{name}"))
    except (KeyError, OSError, ValueError):  # a name may have a null character
        return None
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8))[: record["images"]]
    whole = len(bits) == record["images"] and abs(bits.sum() - entry["metrics"][metric] * len(bits)) < 0.5
    return bits if whole else None


# ---- baselines


def digest(network: Any) -> str:
    """A hash of the weights and buffers of a module; of raw pixels, None, it is empty."""
    if network is None:
        return ""
    content = hashlib.sha256()
    for tensor in network.state_dict().values():
        content.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def baseline_file(config: Mapping[str, Any], evaluation: str, weights: str, formats: str) -> Path:
    """The file of a baseline.

    Args:
        config: of the run.
        evaluation: identity of the evaluator and its settings.
        weights: digest of the network.
        formats: of numbers, and the kind of device.
    """
    read = {key: config[key] for key in OF_BASELINE if key in config}
    content = identity.text([evaluation, read, weights, formats])
    return Path(config["paths"]["outputs"]) / BASELINES / f"{hashlib.sha256(content.encode()).hexdigest()[:20]}.json"
