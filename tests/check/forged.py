"""Forged runs: each edits copies of honest ones, and names the question of ``ssl-bench verify`` that finds it.

A run is presented as another one with that one's configuration and settings of the optimiser, under its run_id.
"""

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from ssl_bench.commands.train import main as train
from ssl_bench.config.identity import evaluation_id, run_id
from ssl_bench.record import checkpoint, evaluations
from ssl_bench.training.engine import Training
from tests.conftest import SMALL, no_pictures, only_run

SHORT = [*SMALL, "threads=1", "epochs=40", "max_steps=24", "evaluate=[knn]"]
GROWS = "optimizer.schedule=constant max_steps=null"  # its length is no part of its identity
Content = dict[str, Any]
Change = Callable[[Content], None]


class Runs:
    """Honest runs, each trained once; a test is given copies."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trained, self.copies = folder, dict[str, Path](), itertools.count()

    def __call__(self, typed: str = "") -> Path:
        """A copy of the run with some overrides, in the working directory."""
        if typed not in self.trained:
            place = self.folder / str(len(self.trained))
            with no_pictures():
                assert train([*SHORT, *typed.split(), f"paths.outputs={place}"]) == 0
            self.trained[typed] = only_run(place)
        run, copy = self.trained[typed], Path("outputs", str(next(self.copies)), self.trained[typed].name)
        shutil.copytree(run, copy)
        return copy

    def images(self, seed: int) -> Path:
        """A folder of random images in two classes."""
        folder, generator = self.folder / f"images{seed}", np.random.default_rng(seed)
        for number in range(0 if folder.exists() else 200):
            path = folder / str(number % 2) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
        return folder

    def own(self, seed: int) -> Path:
        """A copy of a run on such a folder."""
        images = f"dataset=folder dataset.root={self.images(seed)} dataset.size=16 dataset.test_share=0.5"
        return self(f"{images} backbone=resnet_digits batch_size.size=64 max_steps=4")


# ---- editing


def edit(path: Path, change: Change) -> None:
    """Change the content of a file of a run."""
    if path.suffix == ".pt":
        state = checkpoint.read(path)
        change(state)
        torch.save(state, path)
    elif path.suffix == ".jsonl":
        rows = read_rows(path.parent)
        for row in rows:
            change(row)
        write_rows(path.parent, rows)
    else:
        content = yaml.safe_load(path.read_text())
        change(content)
        path.write_text(json.dumps(content))


def read_rows(run: Path) -> list[Content]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_rows(run: Path, rows: Sequence[Content]) -> Path:
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def configured(run: Path, change: Change) -> Path:
    """Change the configuration wherever it stands."""
    edit(run / "config.yaml", change)
    edit(run / "results.json", lambda content: change(content["config"]))
    return run


def named(run: Path, config: Content) -> Path:
    """Give a run the name that a configuration has."""
    name = run_id(config)
    for path in (run / "config.yaml", run / "results.json", *run.glob("checkpoints/*")):
        edit(path, lambda content: content.update({"run_id": name} if "run_id" in content else {}))
    return run.rename(run.parent / name)


def presented(run: Path, other: Path) -> Path:
    """Present a run as another one."""
    shutil.copy(other / "config.yaml", run / "config.yaml")
    theirs = json.loads((other / "results.json").read_text())
    claims = {key: theirs[key] for key in ("config", "facts")}
    edit(run / "results.json", lambda content: content.update(claims))
    for path in run.glob("checkpoints/*"):
        groups = checkpoint.read(other / "checkpoints" / path.name)["optimizer"]["param_groups"]
        edit(path, lambda state, groups=groups: state["optimizer"].update(param_groups=groups))  # type: ignore[misc]
    return named(run, theirs["config"])


def state_of(run: Path, name: str = "last.pt") -> Content:
    return checkpoint.read(run / "checkpoints" / name)


def with_last(run: Path, change: Callable[[str, Any], Any]) -> Path:
    """Change the weights of the last checkpoint, given by their names."""
    method = {name: change(name, value) for name, value in state_of(run)["method"].items()}
    edit(run / "checkpoints" / "last.pt", lambda state: state.update(method=method))
    return run


def with_weights(run: Path, method: Content) -> Path:
    edit(run / "checkpoints" / "last.pt", lambda state: state.update(method=method))
    return run


def evaluated(run: Path, change: Callable[[list[Content]], list[Content]]) -> Path:
    """Change the entries of the evaluations, and the metrics with them."""

    def both(content: Content) -> None:
        content["evaluations"] = change(content["evaluations"])
        content["metrics"] = evaluations.flat(content["evaluations"], content["config"]["epochs"])

    edit(run / "results.json", both)
    return run


def each_entry(run: Path, change: Callable[[Content], Content]) -> Path:
    return evaluated(run, lambda entries: [change(entry) for entry in entries])


# ---- forging


def initial(run: Path) -> Content:
    config = yaml.safe_load((run / "config.yaml").read_text())
    state: Content = Training(config, run.name, run, torch.device("cpu")).state.method.state_dict()
    return state


def raised(entry: Content, by: float = 0.04) -> Content:
    """An entry with another accuracy, without its images."""
    start = f"{entry['evaluator']}{entry['network']}/top1"
    return {**entry, "hits": {}, "metrics": {**entry["metrics"], start: entry["metrics"][start] + by}}


def better(run: Path, by: float = 0.04) -> Path:
    return each_entry(run, lambda entry: raised(entry, by))


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
    theirs = json.loads((other / "results.json").read_text())["evaluations"]
    return evaluated(run, lambda entries: [{**entry, "hits": {}} for entry in theirs])


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
    "the directory": (lambda r: (run := r()).rename(run.parent / "0123456789"), REFUSED),
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
    "an accuracy above 1": (lambda r: better(r(), 0.9), REFUSED),
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
        lambda r: with_last(better(r(), 2 / 450), lambda name, value: value + name.endswith("num_batches_tracked")),
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
    "a result by two images of 450": (lambda r: better(r(), 2 / 450), "results"),
    "as many images were right, but others": (lambda r: with_bits(r(), lambda bits: bits[::-1]), "results"),
    "the files of the images that were right are not there": (
        lambda r: without(run := r(), *(str(path.relative_to(run)) for path in run.glob("hits/*"))),
        "results",
    ),
    "settings of an evaluation": (
        lambda r: evaluated(r(), lambda entries: [*entries, *(other_settings(raised(e, 0.0), k=5) for e in entries)]),
        "results",
    ),
    "settings of the evaluation that was asked for": (
        lambda r: each_entry(r(), lambda entry: other_settings(raised(entry, 0.0), k=5)),
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
        better(r(), 2 / 450), lambda name, value: value * (1 + 1e-6) if name.endswith("weight") else value
    ),
    "a number format, and a result by two images": lambda r: edited(
        better(r(), 2 / 450), "results.json", lambda content: content["environment"].update(precision="bf16")
    ),
    "the name of an option with the same class": lambda r: label(r(), "framework", "byol"),
    "time": lambda r: edited(r(), "results.json", lambda content: content.update(seconds=1.0)),
    "versions": of_results("environment", "torch", "9.0"),
    "facts": of_results("facts", "negatives_per_anchor", 4096),
    "warnings": lambda r: edited(r(), "results.json", lambda content: content.update(warnings=[])),
    "a row between": row_of(12, loss=0.1),
    "a diagnostic": row_of(24, tau=0.7),
}
