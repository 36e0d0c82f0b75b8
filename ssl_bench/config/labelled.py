"""Settings of classifiers that follow from the number of labelled training images.

They are computed from the configuration alone, so that they are part of the identity of an evaluation before any image
is read.
"""

from collections.abc import Mapping
from typing import Any

from ssl_bench.config.identity import datasets_of
from ssl_bench.files import fits

PER_NEIGHBOUR = 50  # labels for each neighbour of kNN, if k is the default of the data set
FEW = 20  # labels per class, on average: with fewer a tenth of them is too small to choose a setting by
RARE = 5  # labels of the rarest class: with fewer a random tenth of all may contain every one of them
TUNED = "ssl_bench.evaluate.finetune.FineTune"
EPOCHS, SHARE = (60, 30), 0.05  # epochs of TUNED with less than SHARE of the labels, and with more
DRAWN = "images"  # the default of hold_out: a random tenth of all images


def held_out(images: int, classes: int, least: int | None) -> str:
    """The images that a linear probe holds out: ``none``, a tenth of each class (``classes``), or of all (``images``).

    Args:
        images: how many have a label.
        classes: 1 or more.
        least: images of the smallest class; None: not known.
    """
    if images < FEW * classes:
        return "none"
    return DRAWN if least is None or least >= RARE else "classes"


def with_labels(
    name: str, evaluator: Mapping[str, Any], on: Any, labels: Any, config: Mapping[str, Any]
) -> dict[str, Any]:
    """The node of an evaluator, with the settings that follow from the number of labels unless the user has set them.

    A linear probe whose ``hold_out`` is null gets one; "images" is left out, so that an identity does not have it. With
    a share of the labels the k of ``knn`` is at most a fiftieth of them, if it is the default: ``dataset.knn_k``, or
    the lowest one of the data sets of ``evaluate.on``. Fine-tuning whose ``epochs`` are null gets EPOCHS.

    Args:
        name: key of the evaluator below ``evaluate``.
        on: node of ``evaluate.on``; None: the data set of the training.
        labels: one of ``evaluate.labels``.
        config: of the run.
    """
    trained_on = config.get("dataset") or {}
    settings, dataset, share = dict(evaluator), on or trained_on, not isinstance(labels, Mapping)
    images, classes = _labelled(dataset, labels), dataset.get("num_classes")
    if "hold_out" in settings:
        held = settings.pop("hold_out")
        if held is None and images and fits(classes, int) and classes:
            held = held_out(images, classes, _part(dataset.get("least_labels"), labels) if share else None)
        settings |= {"hold_out": held} if held not in (None, DRAWN) else {}
    if settings.get("_target_") == TUNED and settings.get("epochs") is None:
        every = _labelled(dataset, 1.0)
        part = labels if share else images / every if images and every else 1.0
        settings["epochs"] = EPOCHS[not (fits(part, float) and part < SHARE)]
    nodes = [node or trained_on for node in datasets_of(config["evaluate"])]
    defaults = [node["knn_k"] for node in nodes if fits(node.get("knn_k"), int)]
    is_default = name == "knn" and defaults and settings.get("k") == min(defaults)  # others have that of a protocol
    if is_default and images and share and labels != 1:
        settings["k"] = max(1, min(settings["k"], images // PER_NEIGHBOUR))
    return settings


def _labelled(dataset: Mapping[str, Any], labels: Any) -> int | None:
    """How many training images have a label; None: unknown."""
    if isinstance(labels, Mapping):
        return labels.get("images")
    images, apart = dataset.get("labelled_images") or dataset.get("train_images"), dataset.get("held_out") or []
    if dataset.get("labelled_images") or not dataset.get("content"):  # it was not counted in the files
        images = _part(images, dataset.get("share", 1))
        images = images - sum(apart) if images and fits(apart, list[int]) else images
    return _part(images, labels)


def _part(count: Any, share: Any) -> int | None:
    """A share of a number; None if they are no numbers, which is refused elsewhere."""
    return max(1, int(count * share)) if fits(count, int) and fits(share, float) else None
