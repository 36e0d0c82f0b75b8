"""A folder with grids of many kinds: runs in every state, of several versions, renamed, copied and edited.

They are written as a training writes them, so that their numbers are chosen: the configuration is composed, and its
run_id, evaluations and bits are those that the package makes of it.

    outputs/          the results folder
        losses/       losses x negatives.k x seed by two commands: arms of unequal seeds, failed, diverged, unfinished
        data/         loss x two folders of images x seed
        digits/       loss x two named data sets, each with its own k of kNN
        ks/           knn with k = 20 in all runs, with k = 1 too in those of DCL
        edited/       optimizer=mine, whose file was edited after seed 0, x temperature.tau
        plugin/       loss=mine, whose source was edited between seeds
        versions/     one recipe of 0.3, 0.4 and now
        renamed/      an experiment that was trained under the name ``first``
        ks_copy/      a copy of ``ks``
        007/, 7/      two names
        untrained/    networks as they are, of two widths
    images/           the user's own images
"""

import contextlib
import functools
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.config.compositions import SEED, Composition
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import name_of_labels, run_dir, run_id
from ssl_bench.evaluate.accuracy import Accuracy
from ssl_bench.record import evaluations, runs
from tests.conftest import SMALL
from tests.results.folders import LOST, fail, make_grid

WORDS = [*(word for word in SMALL if not word.startswith("evaluate")), "dataset=scattered_digits"]
KNN = ["evaluate=knn", "evaluate.baselines=[]", "evaluate.watch=0"]
SHORT = [*WORDS, *KNN, "max_steps=3"]
LOSSES = {"infonce": 0.55, "dcl": 0.60, "eqco": 0.56, "flatnce": 0.5, "macl": 0.58}  # accuracies
STARTED = 1795000000.0  # seconds of the epoch, of the first run; each later one starts a minute after the one before
# How many runs of each experiment are in a state that is not finished, and how many are in the folder in all.
STATES = {
    "losses": {"evaluation missing": 1, "failed": 1, "diverged": 5, "interrupted": 1, "not begun": 1},
    "ks": {"evaluation missing": 1},  # a second one
    "ks_copy": {"evaluation missing": 1},
}
RUNS = {"losses": 24, "data": 12, "digits": 8, "ks": 6, "ks_copy": 6, "edited": 4, "plugin": 6}
RUNS |= {"versions": 8, "renamed": 4, "007": 2, "7": 2, "untrained": 4}
Numbers = Callable[[evaluations.Entry], float]


class Clock:
    """Sets times of folders: each :meth:`tick` is a minute later than the one before."""

    def __init__(self) -> None:
        self.now = STARTED

    def tick(self, *folders: Path) -> None:
        self.now += 60
        for folder in folders:
            for path in [folder, *folder.rglob("*")]:
                os.utime(path, (self.now, self.now))


@functools.cache
def _composed(words: tuple[str, ...]) -> Composition:
    return Composition(json.dumps(load([*words, f"seed={SEED}"])))


def configuration(*words: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The configuration of ``ssl-bench train WORDS seed=SEED``, with other values at some paths, a.b as a__b."""
    config = find_prepared(_composed(words).config(seed)) | {"threads": 1}
    for path, value in changes.items():
        *groups, key = path.split("__")
        node = config
        for group in groups:
            node = node[group]
        node[key] = value
    return config


def all_steps(config: Mapping[str, Any]) -> int:
    """The number of steps of a run: ``max_steps``, or three where it is not set."""
    return 3 * bool(config["epochs"]) if config["max_steps"] is None else int(config["max_steps"])


def epoch(config: Mapping[str, Any], step: int) -> float:
    """The epoch after a step; without ``max_steps`` the last step ends the last epoch."""
    return step / 21 if config["max_steps"] is not None else config["epochs"] * step / max(1, all_steps(config))


def begin(config: Mapping[str, Any], words: Iterable[str] = (), steps: int | None = None) -> Path:
    """Write a run without results that has trained ``steps`` steps (None: all of them)."""
    folder = run_dir(config)
    folder.mkdir(parents=True)
    runs.begin(folder, config, shlex.join(["ssl-bench", "train", *words, f"seed={config['seed']}"]))
    rows = [
        {"step": n, "epoch": epoch(config, n), "loss": 5.0 - 0.5 * n - 0.01 * config["seed"], "lr": 0.075}
        | {"images_per_second": 800.0, "seconds": 0.08 * n}
        for n in range(1, 1 + (all_steps(config) if steps is None else steps))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def evaluated(folder: Path, config: Mapping[str, Any], numbers: Numbers, images: int) -> list[evaluations.Entry]:
    """The evaluations of a configuration with their metrics; which images are classified correctly is written.

    Args:
        numbers: the accuracy of an entry, in [0, 1].
        images: number of test images; an image is equally easy for all runs.
    """
    entries = list[evaluations.Entry]()
    for entry in evaluations.asked(config):
        on, labels = entry["settings"].get("on"), name_of_labels(entry["settings"].get("labels", 1.0))
        name = "/".join(filter(None, (f"{entry['evaluator']}{entry['network']}", on and on["dataset"], labels)))
        easy, own = (np.random.default_rng(key).random(images) for key in (0, int(folder.name, 16)))
        right = (easy + own / 2).argsort().argsort() < round(numbers(entry) * images)
        top1 = Accuracy.of(torch.from_numpy(right))
        metrics = {f"{name}/top1": top1, f"{name}/top5": min(1.0, top1 + 0.25)}
        entries.append(evaluations.write_hits(folder, {**entry, "metrics": metrics}))
    return entries


def finish(
    folder: Path,
    config: Mapping[str, Any],
    numbers: Numbers,
    *others: Mapping[str, Any],
    images: int = 450,
    before: bool = False,
    parts: Mapping[str, Any] | None = None,
) -> None:
    """Write ``results.json``.

    Args:
        config, numbers, images: as in :func:`evaluated`.
        others: configurations of later evaluations of the run.
        before: write the format of version 0.3.
        parts: other values of keys of the file.
    """
    entries = [entry for one in (config, *others) for entry in evaluated(folder, one, numbers, images)]
    if before:
        entries = [{key: value for key, value in entry.items() if key != "hits"} for entry in entries]
    environment: dict[str, Any] = {"ssl_bench": "0.5.0", "torch": "2.14.1", "git": "0" * 40, "device": "AMD EPYC"}
    environment |= {"instructions": "AVX2", "threads": 1, "ranks": 1, "precision": "fp32", "cuda": None}
    facts = {"ranks": 1, "train_images": 1347, "steps": all_steps(config), "lr": 0.075}
    if (config["loss"] or {}).get("_target_"):
        facts |= {"negatives_per_anchor": (config["negatives"] or {}).get("k", 126)}
    top = {"unit": "share", "better": "high", "of": "test images"}
    content: dict[str, Any] = {"run_id": folder.name, "name": config["name"], "config": config, "facts": facts}
    content |= {"metrics": evaluations.flat(entries, config["epochs"]), "evaluations": entries, "seconds": 0.5}
    content |= {
        "units": {name: {"*top1": top, "*top5": top} for name in {entry["evaluator"]: None for entry in entries}}
    }
    content |= {"environment": environment, "warnings": []}
    (folder / "results.json").write_text(json.dumps({**content, **(parts or {})}))
    with open(folder / "metrics.jsonl", "a") as file:
        row = {"step": all_steps(config), "epoch": epoch(config, all_steps(config)), **content["metrics"]}
        file.write(json.dumps(row) + "\n")


def accuracy(config: Mapping[str, Any], entry: evaluations.Entry) -> float:
    """An accuracy that depends on the loss, the number of negatives, k of kNN, the share of labels and the seed."""
    settings, classes = entry["settings"], config["dataset"]["num_classes"]
    of_seed, own = (np.random.default_rng(key).standard_normal() for key in (config["seed"], int(run_id(config), 16)))
    value = LOSSES.get(config["choices"]["loss"], 0.57) + 0.01 * np.log2((config["negatives"] or {}).get("k", 4) / 4)
    value += 0.012 * of_seed + 0.006 * own + 0.02 * (entry["evaluator"] == "linear") + max(0, 10 - classes) / 30
    value += 0.06 * np.log10(settings.get("labels", 1.0)) - 0.05 * (settings.get("k") == 1)
    value += {"_init": -0.4, "_raw": -0.3}.get(entry["network"], 0.0) - 0.1 * (config["optimizer"]["lr"] < 0.01)
    return float(value - 0.05 * (config["temperature"]["tau"] - 0.2))


def finished(words: Sequence[str], seed: int, *others: str, images: int = 450, **changes: Any) -> Path:
    """Write a finished run with its :func:`accuracy`; ``others`` are overrides of a later evaluation."""
    config = configuration(*words, seed=seed, **changes)
    folder = begin(config, words)
    later = [configuration(*words, *others, seed=seed, **changes)] if others else []
    finish(folder, config, functools.partial(accuracy, config), *later, images=images)
    return folder


def losses(clock: Clock) -> None:
    """Two commands, the second with more seeds of two losses. Of flatnce all runs have diverged."""
    full = "evaluation missing"
    of_ends = {("eqco", 16, 1): full, ("infonce", 16, 3): "diverged", ("dcl", 16, 2): "failed"}
    of_ends |= {("dcl", 4, 3): "interrupted", ("dcl", 16, 3): "not begun"}
    for names, seeds in ((("infonce", "dcl", "eqco", "flatnce"), (0, 1)), (("infonce", "dcl"), (2, 3))):
        runs, begun, started = list[list[str]](), dict[int, Path](), clock.now
        for loss, k, seed in [(loss, k, seed) for loss in names for k in (4, 16) for seed in seeds]:
            words = [*SHORT, "name=losses", f"loss={loss}", "negatives=random_k", f"negatives.k={k}"]
            runs.append([*words, f"seed={seed}"])
            end = of_ends.get((loss, k, seed), "diverged" if loss == "flatnce" else "done")
            if end == "not begun":
                continue
            if end == "done":
                folder = finished(words, seed)
            else:
                steps = {"diverged": 1, "failed": 1, "interrupted": 2, full: 3}[end]
                folder = begin(configuration(*words, seed=seed), words, steps)
            if end in ("diverged", "failed"):
                fail(folder, LOST if end == "diverged" else "/data: No space left on device; after fixing that, resume")
            begun[len(runs) - 1] = folder
            clock.tick(folder)
        make_grid(str(int(started)), [*map(shlex.join, runs)], begun, started)


def data(clock: Clock) -> None:
    """Own images in two folders, of two and of four classes, and two data sets with names."""
    for root, classes in (("two", 2), ("four", 4)):
        for number in range(120):
            path = Path("images", root, "abcd"[number % classes], f"{number:03}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng([number, classes]).integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    own = [word for word in SHORT if not word.startswith(("dataset", "backbone"))]
    own += ["dataset=folder", "dataset.size=20", "dataset.test_share=0.5", "backbone=resnet_digits"]
    own += ["batch_size.size=8", "evaluate.knn.k=1", "name=data"]
    named = ["name=digits", "optimizer.weight_decay=0.001", "backbone=resnet_digits"]
    named += [word for word in SHORT if not word.startswith("dataset")]
    for loss in ("infonce", "dcl"):
        for seed in (0, 1, 2):
            for root in ("two", "four"):
                words = [*own, f"dataset.root=images/{root}", f"loss={loss}"]
                clock.tick(finished(words, seed, images=60))
            for dataset in ("scattered_digits", "mnist") if seed < 2 else ():
                clock.tick(finished([f"dataset={dataset}", *named, f"loss={loss}"], seed))


def several_evaluations(clock: Clock) -> None:
    """Two evaluations of one metric in some runs."""
    for loss in ("infonce", "dcl"):
        for seed in (0, 1, 2):
            again = ["evaluate.knn.k=1", "evaluate.baselines=[]"] if loss == "dcl" else []
            words = [*SHORT, "name=ks", "optimizer.weight_decay=0.002", "evaluate.baselines=[init,raw]", f"loss={loss}"]
            folder = finished(words, seed, *again)
            clock.tick(folder)
            if (loss, seed) == ("infonce", 2):  # killed while it was evaluated once more
                asked = configuration(*words, "evaluate.knn.k=1", seed=seed)
                (folder / "config.yaml").write_text(runs.as_yaml(asked))
                clock.tick(folder / "config.yaml")
    shutil.copytree("outputs/ks", "outputs/ks_copy")


def edited(clock: Clock) -> None:
    """An option and a plugin that were edited between two seeds, while the commands stayed the same."""
    for tau in (0.1, 0.5):
        for seed, lr in ((0, 0.9), (1, 0.001)):
            words = [*SHORT, "name=edited", f"temperature.tau={tau}"]
            config = configuration(*words, seed=seed, optimizer__lr=lr, choices__optimizer="mine")
            folder = begin(config, [*(w for w in words if not w.startswith("optimizer")), "optimizer=mine"])
            finish(folder, config, functools.partial(accuracy, config))
            clock.tick(folder)
    for loss in ("infonce", "mine"):
        for seed, source in ((0, "aaaaaaaaaa"), (1, "bbbbbbbbbb"), (2, "aaaaaaaaaa")):
            words = [*SHORT, "name=plugin"]
            mine = {"loss": {"_target_": "edited.Mine"}, "choices__loss": "mine"} if loss == "mine" else {}
            config = configuration(*words, seed=seed, plugins={"edited": f"1 #{source}"}, **mine)
            folder = begin(config, [*words, f"loss={loss}", "plugins=[edited]"])
            finish(folder, config, functools.partial(accuracy, config))
            clock.tick(folder)


def versions(clock: Clock) -> None:
    """One recipe: seed 0 and 1 of version 0.4, seed 2 of 0.3, seed 3 of this one. The numbers of 0.3 have its names."""
    known = yaml.safe_load(Path(__file__).parents[1].joinpath("config/of_0_4.yaml").read_text())
    words = ["name=versions", *known["109f0e8f00"]["overrides"].split(), *KNN]
    for loss in ("infonce", "dcl"):
        now = configuration(*words, f"loss={loss}")
        for seed, version in ((0, "0.4.0"), (1, "0.4.0"), (2, "0.3.0"), (3, "0.5.0")):
            config = configuration(*words, f"loss={loss}", seed=seed)
            old, more = version != "0.5.0", list[dict[str, Any]]()
            if old:  # of which the first run is the file
                target = {"loss": {"_target_": now["loss"]["_target_"].rpartition(".")[0] + "." + _class(now)}}
                given = known["109f0e8f00"]["config"]
                config = (
                    given | target | {key: config[key] for key in ("name", "seed", "threads", "evaluate", "choices")}
                )
            if version == "0.3.0":
                nodes = {"framework": "predictor_norm", "optimizer": "factors", "evaluate": "labels"}
                config |= {name: {k: v for k, v in config[name].items() if k != key} for name, key in nodes.items()}
                config = {key: value for key, value in config.items() if key != "fused_norm"}
                on = configuration(*words, "evaluate.on={dataset: folder, root: images/two, size: 20}")["evaluate"][
                    "on"
                ]
                more = [{**config, "evaluate": {**config["evaluate"], "on": on | changed}} for changed in _TWO_PLACES]
            folder = begin(config, [*words, f"loss={loss}"])
            environment = {"ssl_bench": version, "torch": "2.14.1" if version == "0.5.0" else "2.6.0", "ranks": 1}
            parts: dict[str, Any] = {"environment": environment} | ({"units": {}} if version == "0.3.0" else {})
            numbers = functools.partial(accuracy, config)
            finish(folder, config, numbers, *more, before=version == "0.3.0", parts=parts)
            clock.tick(folder)


_TWO_PLACES: list[dict[str, str]] = [{}, {"root": "elsewhere/two", "content": "0123456789"}]  # of images of one name


def _class(config: Mapping[str, Any]) -> str:
    return str(config["loss"]["_target_"]).rpartition(".")[2]


def names(clock: Clock) -> None:
    """A renamed experiment, names that are equal as numbers, and networks that are not trained."""
    for seed in (0, 1):
        first, numbers = ("first", "infonce", 48), ("007", "dcl", 32)
        for name, loss, size in (first, ("first", "dcl", 48), numbers, ("7", "infonce", 32)):
            clock.tick(finished([*SHORT, f"name={name}", f"loss={loss}", f"batch_size.size={size}"], seed))
        for width in (4, 8):
            words = [*WORDS, *KNN, "name=untrained", "epochs=0", f"backbone.width={width}"]
            clock.tick(finished(words, seed))
    Path("outputs/first").rename("outputs/renamed")


def make(folder: Path) -> None:
    """Make the folder, which must not exist."""
    folder.mkdir(parents=True)
    with contextlib.chdir(folder):
        clock = Clock()
        for part in (losses, data, several_evaluations, edited, versions, names):
            part(clock)
