"""Forged runs: each edits copies of honest ones, and names the question of ``ssl-bench verify`` that finds it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ssl_bench.config.identity import evaluation_id
from ssl_bench.training.engine import Training
from tests.check.edited import (
    GROWS,
    Change,
    Content,
    Runs,
    configured,
    each_entry,
    edit,
    evaluated,
    presented,
    read_rows,
    state_of,
    with_last,
    with_weights,
    write_rows,
)


def initial(run: Path) -> Content:
    config = yaml.safe_load((run / "config.yaml").read_text())
    state: Content = Training(config, run.name, run, torch.device("cpu")).state.method.state_dict()
    return state


def raised(entry: Content, by: float = 0.04) -> Content:
    """An entry with another accuracy, without its images."""
    start = f"{entry['evaluator']}{entry['network']}/top1"
    return {**entry, "hits": {}, "metrics": {**entry["metrics"], start: entry["metrics"][start] + by}}


def better(run: Path, images: int = 18) -> Path:
    """Have some more of 450 images right."""

    def more(bits: np.ndarray) -> np.ndarray:
        bits[np.flatnonzero(bits == 0)[:images]] = 1
        return bits

    return each_entry(with_bits(run, more), lambda entry: {**raised(entry, images / 450), "hits": entry["hits"]})


def other_settings(entry: Content, **settings: Any) -> Content:
    """An entry that says to be of other settings, with the identity that they have."""
    settings = {**entry["settings"], **settings}
    return {**entry, "settings": settings, "id": evaluation_id(entry["evaluator"], settings)}


def with_bits(run: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """Change which images an accuracy has right."""
    path = next(run.glob("hits/knn-top1*"))
    packed = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    path.write_bytes(np.packbits(change(np.unpackbits(packed)[:450])).tobytes())
    return run


def lower(run: Path, first: int, last: int, by: float = 0.03) -> Path:
    """Lower the recorded losses of some steps."""

    def change(row: Content) -> None:
        if "loss" in row and first <= row["step"] <= last:
            row["loss"] *= 1 - by

    edit(run / "metrics.jsonl", change)
    return run


def skipped(run: Path, whole: Path) -> Path:
    """Let a run of 14 steps look like one of 24, with made-up rows for what it has skipped."""
    early = [row for row in read_rows(run) if "loss" in row]
    late = [{**row, "step": row["step"] + 10} for row in read_rows(run) if row["step"] > 4]
    write_rows(run, [*early, *late])
    for path in run.glob("checkpoints/*"):
        edit(path, lambda state: state.update(step=state["step"] + 10))
    return presented(run, whole)


def from_weights(runs: Runs, typed: str = "", begun: str = "") -> Path:
    """A run that did not begin where its seed says, but with the weights of another run."""
    return presented(runs(f"init={runs(begun).absolute()} {typed}"), runs(typed))


def other_middle(runs: Runs) -> Path:
    """As from_weights, with the first rows of an honest run."""
    run, honest = from_weights(runs), read_rows(runs())
    return write_rows(run, [*honest[:14], *read_rows(run)[14:]])


def other_results(run: Path, other: Path) -> Path:
    shutil.copytree(other / "hits", run / "hits", dirs_exist_ok=True)
    theirs: list[Content] = json.loads((other / "results.json").read_text())["evaluations"]
    return evaluated(run, lambda entries: theirs)


def longer(run: Path) -> Path:
    """Claim another epoch, of which no step was trained."""
    configured(run, lambda config: config.update(epochs=config["epochs"] + 1))
    return each_entry(run, lambda entry: {**entry, "epochs": entry["epochs"] + 1})


def without(run: Path, *names: str) -> Path:
    for name in names:
        (run / name).unlink()
    return run


def edited(run: Path, name: str, change: Change) -> Path:
    edit(run / name, change)
    return run


def label(run: Path, group: str, option: str) -> Path:
    return configured(run, lambda config: config["choices"].update({group: option}))


Forgery = Callable[[Runs], Path]
REFUSED = "refused"
FORGED: dict[str, tuple[Forgery, str]] = {
    # what its files say of each other
    "config.yaml": (lambda r: edited(r(), "config.yaml", lambda config: config.update(seed=5)), "identity"),
    "the directory": (lambda r: (run := r()).rename(run.parent / "0123456789"), "identity"),
    "a checkpoint of another run": (
        lambda r: edited(r(), "checkpoints/previous.pt", lambda state: state.update(run_id="0123456789")),
        "identity",
    ),
    "the configuration of results.json": (
        lambda r: edited(r(), "results.json", lambda content: content["config"].update(seed=5)),
        REFUSED,
    ),
    "the name of the loss": (lambda r: label(r(), "loss", "dcl"), "identity"),
    "the name of the data set": (lambda r: label(r(), "dataset", "cifar10"), "identity"),
    "a metric that no evaluation has": (
        lambda r: edited(r(), "results.json", lambda content: content["metrics"].update({"knn/top1": 0.9})),
        REFUSED,
    ),
    "an accuracy above 1": (lambda r: each_entry(r(), lambda entry: raised(entry, 0.9)), REFUSED),
    "a made-up id": (lambda r: each_entry(r(), lambda entry: raised(entry, 0.2) | {"id": "0123456789"}), REFUSED),
    "a setting that no evaluation has": (
        lambda r: evaluated(r(), lambda entries: [*entries, *(other_settings(raised(e), other=1) for e in entries)]),
        REFUSED,
    ),
    "other images were right": (lambda r: with_bits(r(), lambda bits: 1 - bits), REFUSED),
    "a row twice": (lambda r: write_rows(run := r(), [{**(rows := read_rows(run))[0], "loss": 1.0}, *rows]), REFUSED),
    "rows in another order": (lambda r: write_rows(run := r(), read_rows(run)[::-1]), REFUSED),
    # the first steps
    "seed": (lambda r: presented(r("seed=1"), r()), "start"),
    "loss": (lambda r: presented(r("loss=dcl"), r()), "start"),
    "temperature": (lambda r: presented(r("temperature.tau=0.22"), r()), "start"),
    "number of negatives": (
        lambda r: presented(r("negatives=random_k negatives.k=64"), r("negatives=random_k negatives.k=32")),
        "start",
    ),
    "views": (lambda r: presented(r("augment.scale=[0.9,1.0]"), r()), "start"),
    "number format": (lambda r: presented(r("precision=bf16"), r("precision=fp32")), "start"),
    "images": (lambda r: presented(r.own(1), r.own(0)), "start"),
    "weights to start from": (from_weights, "start"),
    "weights to start from, of a run with one row": (lambda r: from_weights(r, "log_every=1000"), "start"),
    "weights of three steps to start from, of a run with few rows": (
        lambda r: from_weights(r, "log_every=12", "max_steps=3"),
        "start",
    ),
    "the first losses": (lambda r: lower(r(), 1, 3), "start"),
    "the first losses by a millionth": (lambda r: lower(r(), 1, 3, 1e-6), "start"),
    "the first rows are not there": (lambda r: write_rows(run := r(), read_rows(run)[5:]), "start"),
    "no row is there": (lambda r: write_rows(r(), []), "start"),
    # the last steps
    "a rate that is 20% higher": (lambda r: presented(r("optimizer.lr=0.36"), r()), "end"),
    "weight decay": (lambda r: presented(r("optimizer.weight_decay=0.1"), r()), "end"),
    "weights of another run": (lambda r: with_weights(r(), state_of(r("seed=1"))["method"]), "end"),
    "weights of the initialisation": (lambda r: with_weights(run := r(), initial(run)), "end"),
    "weights of another step": (lambda r: with_weights(run := r(), state_of(run, "previous.pt")["method"]), "end"),
    "statistics of batch norms": (
        lambda r: with_last(r(), lambda name, value: 1.05 * value if name.endswith("running_var") else value),
        "end",
    ),
    "statistics that are no number": (
        lambda r: with_last(r(), lambda name, value: value / 0 * 0 if name.endswith("running_mean") else value),
        "end",
    ),
    "a count of steps, and a result with it": (
        lambda r: with_last(better(r(), 2), lambda name, value: value + name.endswith("num_batches_tracked")),
        "end",
    ),
    "weights that the run has not": (
        lambda r: with_weights(run := r(), state_of(run)["method"] | {"more": torch.ones(3)}),
        "end",
    ),
    "keys of a queue": (
        lambda r: with_last(
            r("framework=moco_v2 negatives.k=192"),
            lambda name, value: value.flip(0) if name.endswith("keys") else value,
        ),
        "end",
    ),
    "the last losses": (lambda r: lower(r(), 20, 24), "end"),
    "the last losses, and fewer rows are asked for": (
        lambda r: configured(lower(r(), 20, 24), lambda config: config.update(log_every=1000)),
        "end",
    ),
    "skipped epochs": (lambda r: skipped(r("max_steps=14"), r()), "end"),
    "an epoch that was not trained": (lambda r: longer(r(f"{GROWS} epochs=1")), "end"),
    "no earlier state": (lambda r: without(r(), "checkpoints/previous.pt"), "end"),
    # the results
    "results of another run": (lambda r: other_results(r(), r("seed=1")), "results"),
    "a result": (lambda r: better(r()), "results"),
    "a result by two images of 450": (lambda r: better(r("max_steps=3"), 2), "results"),
    "a result by two images, and another number format": (
        lambda r: edited(
            better(r(), 2), "results.json", lambda content: content["environment"].update(precision="bf16")
        ),
        "results",
    ),
    "as many images were right, but others": (lambda r: with_bits(r(), lambda bits: bits[::-1]), "results"),
    "the files of the images that were right are not there": (
        lambda r: without(run := r(), *(str(path.relative_to(run)) for path in run.glob("hits/*"))),
        "results",
    ),
    "settings of an evaluation": (
        lambda r: evaluated(r(), lambda entries: [*entries, *(other_settings(e, k=5) for e in entries)]),
        "results",
    ),
    "settings of the evaluation that was asked for": (
        lambda r: each_entry(r(), lambda entry: other_settings(entry, k=5)),
        "results",
    ),
    "an evaluation twice": (lambda r: evaluated(r(), lambda entries: [*entries, *map(raised, entries)]), "results"),
    "an evaluation that is left out": (lambda r: evaluated(r("evaluate=[knn,geometry]"), lambda e: e[:1]), "results"),
    "numbers that are left out": (
        lambda r: each_entry(r(), lambda entry: {**entry, "metrics": {}, "hits": {}}),
        "results",
    ),
    "a baseline": (
        lambda r: each_entry(
            r("evaluate.baselines=[init]"), lambda entry: raised(entry, -0.04) if entry["network"] else entry
        ),
        "results",
    ),
    "a number of fewer epochs": (
        lambda r: evaluated(r(), lambda entries: [*entries, *(raised(e) | {"epochs": 2} for e in entries)]),
        "results",
    ),
}


def of_results(key: str, name: str, value: Any) -> Forgery:
    return lambda runs: edited(runs(), "results.json", lambda content: content[key].update({name: value}))


def row_of(step: int, **values: Any) -> Forgery:
    def change(row: Content) -> None:
        row.update(values if row["step"] == step else {})

    return lambda runs: edited(runs(), "metrics.jsonl", change)


# What the README of ssl_bench/check says that verify cannot show.
UNSEEN: dict[str, Forgery] = {
    "the middle of the training": other_middle,
    "weights by a rounding, and a result by two images": lambda r: with_last(
        better(r(), 2), lambda name, value: value * (1 + 1e-6) if name.endswith("weight") else value
    ),
    "the name of an option with the same class": lambda r: label(r(), "framework", "byol"),
    "time": lambda r: edited(r(), "results.json", lambda content: content.update(seconds=1.0)),
    "versions": of_results("environment", "torch", "9.0"),
    "facts": of_results("facts", "negatives_per_anchor", 4096),
    "warnings": lambda r: edited(r(), "results.json", lambda content: content.update(warnings=[])),
    "a row between": row_of(12, loss=0.1),
    "a diagnostic": row_of(24, tau=0.7),
}
