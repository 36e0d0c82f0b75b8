"""The interface of a dataset: its splits, the properties of its images, and the tasks that it is evaluated on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ssl_bench.data.content import content_of
from ssl_bench.data.copies import Originals
from ssl_bench.data.source import Source
from ssl_bench.errors import ConfigError, require


class MissingData(ConfigError):
    """Files of a dataset are missing."""


class Dataset(ABC):
    """Base class: the splits of a dataset and the properties of its images.

    Five arguments, ``train_images`` to ``least_labels``, are for other parts of the configuration; the
    dataset itself does not use them.

    Args:
        root: folder of all datasets (``paths.data``).
        size: height and width of the images.
        channels: number of channels of an image.
        num_classes: labels are 0 .. num_classes - 1.
        mean, std: statistics of each channel's values in [0, 1]. Channels without statistics must be constant over the
            image and are not normalised.
        train_images: images in one epoch of pre-training, for cost estimates without the files.
        epochs: default length of a training.
        knn_k: default number of neighbours of the kNN evaluator.
        labelled_images: images that classifiers are trained on, if they are others than ``train_images``.
        least_labels: training images of the smallest class; None: classes are of about one size.
        content: hash of the files that hold the images, checked when they are opened; None: it is not checked.
        hashes: the hash is of all bytes, not of a part of them.

    Attributes:
        one_label: whether a label is the number of one class, and not the count of each.
        has_pixels: whether all images have one size, even those of which evaluation takes the centre.
        has_images: whether there is anything to train a network on, or to evaluate it on.
        dtype: of the stored values. Those of uint8 are shares of 255, others are taken as they are, also by ``mean``.
        place: the key that says where the files are.

    Raises:
        InvalidValue: ``mean`` and ``std`` do not fit each other or the channels, or a number is too small.
    """

    one_label = True
    has_pixels = False
    has_images = True
    dtype = "uint8"
    place = "paths.data"

    def __init__(
        self,
        root: str,
        size: int,
        channels: int,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        train_images: int | None = None,
        epochs: int | None = None,
        knn_k: int | None = None,
        labelled_images: int | None = None,
        least_labels: int | None = None,
        content: str | None = None,
        hashes: bool = False,
    ) -> None:
        for name, value, least in (("size", size, 1), ("channels", channels, 1), ("num_classes", num_classes, 0)):
            require(value >= least, name, value, f"{least} or more")
        for name, number in (("train_images", train_images), ("epochs", epochs), ("knn_k", knn_k)):
            require(number is None or number >= 1, name, number, "1 or more, or null")
        require(len(mean) <= channels, "mean", mean, f"at most {channels} numbers, one per channel from the first on")
        require(len(std) == len(mean), "std", std, f"as many numbers as mean has ({len(mean)})")
        self.root, self.size, self.channels, self.num_classes = Path(root), size, channels, num_classes
        self.content, self.hashes = content, hashes
        self.eval_view: dict[str, Any] = {}  # further arguments of EvalView, for images of many sizes

    @abstractmethod
    def check(self) -> int:
        """Count the images to pre-train on, from the headers of the files only.

        Raises:
            ConfigError: a file is missing; the message names the command that makes it.
        """

    def files(self) -> Sequence[Path]:
        """The files that hold the images, all below ``root``; none if the package makes the images.

        Raises:
            ConfigError: they cannot be listed.
        """
        return ()

    def settings_of_images(self) -> dict[str, Any]:
        """Read from the images what the configuration takes from them: arguments of the constructor, with values.

        Raises:
            ConfigError: there are no images, or they cannot be read.
        """
        count = self.check()
        return {"content": self._content, "train_images": count}

    @cached_property
    def _content(self) -> str:
        try:
            return self.hash_of_files()
        except OSError as error:
            raise ConfigError(f"dataset: {error.filename} cannot be read ({error.strerror})") from error

    def hash_of_files(self) -> str:
        """Raises OSError if one cannot be read."""
        return content_of(self.files(), self.root, self.hashes)

    def check_content(self) -> None:
        """Refuse files whose hash is not ``content``; called when they are opened.

        Raises:
            ConfigError: they have another hash, or cannot be read.
        """
        if self.content is not None and self._content != self.content:
            raise ConfigError(
                f"dataset: the images in {self.root} are not those of this run any more ({self._content}, not "
                f"{self.content}): set {self.place} to the folder that has them"
            )

    def pretrain(self) -> Source:
        """Open the images to pre-train on."""
        raise NotImplementedError

    def split(self, name: str) -> Source:
        """Open the labelled ``train`` or ``test`` split, for evaluation."""
        raise NotImplementedError

    def originals(self, split: Literal["train", "test"]) -> Originals | None:
        """The images to pre-train on, or the test split, as bytes that may be copied; None if they are not known."""
        return None

    def class_names(self) -> list[str]:
        """List the names of the classes in the order of their labels; empty if they are not known."""
        return []

    def doubts(self) -> list[str]:
        """Sentences about images that are allowed and make a result doubtful; they stand beside it."""
        return []

    def probes(self) -> "dict[str, Probe]":
        """The classification tasks that a network is evaluated on, by the name in the metrics.

        ``digit20`` becomes ``linear/digit20/top1``; the name "" is left out: ``linear/top1``.
        """
        return {"": Probe(self.split("train"), self.split("test"), self.num_classes)}


@dataclass(frozen=True)
class Probe:
    """One classification task: the labelled splits to train and test a classifier on, and the number of classes.

    Attributes:
        train: what the classifier is trained on.
        test: what it is tested on.
        num_classes: at least 2.
        choose: what settings are chosen by; None: a part of ``train``.
    """

    train: Source
    test: Source
    num_classes: int
    choose: Source | None = None
