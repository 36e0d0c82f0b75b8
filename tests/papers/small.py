"""Make the run of a cell small: two steps on eight generated images at a time, by the code of the real run."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ssl_bench import files

BATCH, CLASSES, SIDE = 8, 6, 32
COUNTS = {"train": 36, "test": 18, "unlabeled": 18}
# Arguments of evaluators that are made small wherever they occur.
EVALUATOR_ARGUMENTS: dict[str, Any] = {"k": 5, "epochs": 1, "batch_size": BATCH, "lrs": "[0.1]", "batches": 1}
EVALUATOR_ARGUMENTS |= {"batch_sizes": f"[{BATCH}]", "directions": 2, "silhouette_samples": 18, "queries": BATCH}
EVALUATOR_ARGUMENTS |= {"keys": 18, "draws": 2, "steps": 2, "evaluations": 2}


def overrides(config: Mapping[str, Any], data: Path) -> list[str]:
    """The overrides that make the run of a composed configuration small, on generated images in ``data``."""
    small = ["scale=reduced", f"paths.data={data}", "max_steps=2", "precision=fp32", "tracking=off"]
    small += [f"batch_size.size={BATCH}", "batch_size.chunk=null", "evaluate.every=0"]
    dataset = config["dataset"]
    if "images" in dataset:  # that are made without files
        small.append(f"dataset.images={COUNTS['train']}")
    if "folder" in dataset:
        small += [f"dataset.num_classes={CLASSES}", "dataset.classes=null", "dataset.packed=false"]
        side = 112 if "combine" in dataset else SIDE
        small += [f"dataset.resize={side}", f"dataset.size={side}"]
    elif dataset["size"] > SIDE and "digits" not in dataset:  # which a small canvas cannot hold
        small.append(f"dataset.size={SIDE}")
    k = (config["negatives"] or {}).get("k")
    if k is not None:
        cross = config["negatives"].get("views") == "cross"
        small.append(f"negatives.k={min(k, BATCH - 1 if cross else 2 * BATCH - 2)}")
    if config["framework"].get("groups", 1) > 1:
        small.append("framework.groups=2")
    if "clusters" in config["framework"]:
        small.append(f"framework.clusters={BATCH // 2}")
    for name, node in config["evaluate"].items():
        if isinstance(node, Mapping):
            arguments = {key: value for key, value in EVALUATOR_ARGUMENTS.items() if key in node}
            small += [f"evaluate.{name}.{key}={value}" for key, value in arguments.items()]
    return small


def write(config: Mapping[str, Any]) -> None:
    """Write the images of a small run in the format that its dataset reads. ``config`` includes :func:`overrides`.

    The keys of a dataset say what it reads: photos in ``folder``, arrays in ``name``, MNIST for its ``digits``.
    """
    data, dataset = Path(config["paths"]["data"]), config["dataset"]
    evaluators = [node for node in config["evaluate"].values() if isinstance(node, Mapping)]
    if any("annotations" in node for node in evaluators):
        _photos(data / "photos", 1, 64)
    if any("drops" in node for node in evaluators):
        _coco(data / "coco", 2, 64)
    if "folder" in dataset:
        for split in (dataset["train"], dataset["test"]):
            for label in range(CLASSES):
                _photos(data / dataset["folder"] / split / f"n{label:08d}", 3, 48)
    if "digits" in dataset:
        _arrays(data / "mnist", 28, 1, 10)
    if "name" in dataset:
        channels = dataset["channels"] - dataset.get("bits", 0)
        _arrays(data / dataset["name"], dataset["size"], channels, dataset["num_classes"])


def _arrays(folder: Path, side: int, channels: int, classes: int) -> None:
    """Write the images and labels of every split as arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        images = _noise(split, (count, side, side, channels))
        labels = np.arange(count) % min(classes, CLASSES)
        for part, array in (("images", images), ("labels", labels.astype(np.int64))):
            files.write(folder / f"{split}_{part}.npy", lambda file, array=array: np.save(file, array))  # type: ignore[misc]


def _photos(folder: Path, count: int, side: int) -> None:
    """Write ``count`` JPEG files of side x side pixels."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        picture = Image.fromarray(_noise(f"{folder.name}{i}", (side, side, 3)))
        files.write(folder / f"{i}.JPEG", partial(picture.save, format="JPEG"))


def _coco(folder: Path, count: int, side: int) -> None:
    """Write ``count`` photos of side x side pixels for each split, with an object in each, in COCO's layout."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    images = [{"id": i, "file_name": f"{i}.JPEG", "width": side, "height": side} for i in range(count)]
    half = {"bbox": [0, 0, side / 2, side / 2], "area": side * side / 4, "iscrowd": 0}
    objects = [{"id": i + 1, "image_id": i, "category_id": 1, **half} for i in range(count)]
    for split in ("train2017", "val2017"):
        _photos(folder / split, count, side)
        content = {"images": images, "annotations": objects, "categories": [{"id": 1}]}
        files.write_json(folder / "annotations" / f"instances_{split}.json", content)


def _noise(key: str, shape: tuple[int, ...]) -> Any:
    """Random bytes that depend only on ``key``."""
    return np.random.default_rng(list(key.encode())).integers(0, 256, shape, dtype=np.uint8)
