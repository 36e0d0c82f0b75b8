"""Every cell in seconds: two steps of eight generated images, through the same code as the real thing.

``scale=smoke`` is part of a run's identity, so what comes out can never be taken for a result.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ssl_bench import files

BATCH, CLASSES, SIDE = 8, 6, 32
COUNTS = {"train": 36, "test": 18, "unlabeled": 18}
DRAWN = ("ScatteredDigits", "BitImages")  # datasets without files
EVALUATORS = {
    "knn": ["evaluate.knn.k=5"],
    "linear": ["evaluate.linear.epochs=1", "evaluate.linear.batch_size=8", "evaluate.linear.lrs=[0.1]"],
    "npc": ["evaluate.npc.batch_sizes=[8]", "evaluate.npc.batches=1"],
    "projections": ["evaluate.projections.directions=2"],
    "geometry": ["evaluate.geometry.silhouette_samples=18"],
}


def overrides(config: Mapping[str, Any], data: Path) -> list[str]:
    """What makes the run of a composed configuration small, with its images under ``data``."""
    if "epochs" not in config:  # the toys
        return ["name=smoke", *(["steps=2", "evaluations=2"] if "steps" in config else [])]
    small = ["name=smoke", "scale=smoke", f"paths.data={data}", "max_steps=2", "precision=fp32", "tracking=off"]
    small += [f"batch_size.size={BATCH}", "batch_size.chunk=null", "evaluate.every=0"]
    dataset, kind = config["dataset"], _kind(config)
    if kind == "BitImages":
        small.append("dataset.images=36")
    if "folder" in dataset:
        small += [f"dataset.num_classes={CLASSES}", "dataset.classes=null", "dataset.packed=false"]
        small += ["dataset.resize=112", "dataset.size=112"] if "combine" in dataset else []
        small += [] if "combine" in dataset else [f"dataset.resize={SIDE}", f"dataset.size={SIDE}"]
    elif dataset["size"] > SIDE and kind != "MultiDigits":
        small.append(f"dataset.size={SIDE}")
    k = (config["negatives"] or {}).get("k")
    if k is not None:
        cross = config["negatives"].get("views") == "cross"
        small.append(f"negatives.k={min(k, BATCH - 1 if cross else 2 * BATCH - 2)}")
    if "clusters" in config["framework"]:
        small.append(f"framework.clusters={BATCH // 2}")
    for name, node in config["evaluate"].items():
        if name in EVALUATORS:
            small += EVALUATORS[name]
        elif isinstance(node, Mapping) and "milestones" in node:  # a linear classifier on images
            small += [f"evaluate.{name}.epochs=1", f"evaluate.{name}.batch_size={BATCH}"]
        elif name == "local_features":
            small += [f"evaluate.{name}.images={data / 'photos'}", f"evaluate.{name}.annotations=null"]
            small += [f"evaluate.{name}.{o}" for o in ("photos=1", "size=128", "clusters=[2,4]", "grid=8", "n_init=1")]
    return small


def write(config: Mapping[str, Any], data: Path) -> None:
    """The images that a small run needs, in the layout that its dataset reads. ``config`` has ``overrides`` in it."""
    dataset, kind = config["dataset"], _kind(config)
    if "local_features" in config["evaluate"]:
        _photos(data / "photos", 1, 64)
    if "folder" in dataset:
        for split in (dataset["train"], dataset["test"]):
            for label in range(CLASSES):
                _photos(data / dataset["folder"] / split / f"n{label:08d}", 3, 48)
    if kind in ("MultiDigits", "DigitOnImageNet"):
        _arrays(data / "mnist", 28, 1, 10)
    elif "folder" not in dataset and kind not in DRAWN:
        channels = dataset["channels"] - dataset.get("bits", 0)
        _arrays(data / dataset["name"], dataset["size"], channels, dataset["num_classes"])


def _kind(config: Mapping[str, Any]) -> str:
    return str(config["dataset"]["_target_"]).rpartition(".")[2]


def _arrays(folder: Path, side: int, channels: int, classes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        images = _noise(split, (count, side, side, channels))
        labels = np.arange(count) % min(classes, CLASSES)
        for what, array in (("images", images), ("labels", labels.astype(np.int64))):
            files.write(folder / f"{split}_{what}.npy", lambda file, array=array: np.save(file, array))  # type: ignore[misc]


def _photos(folder: Path, count: int, side: int) -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        picture = Image.fromarray(_noise(f"{folder.name}{i}", (side, side, 3)))
        files.write(folder / f"{i}.JPEG", partial(picture.save, format="JPEG"))


def _noise(key: str, shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(list(key.encode())).integers(0, 256, shape, dtype=np.uint8)
