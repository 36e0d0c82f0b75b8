"""The prepared datasets: uint8 arrays, memory-mapped from ``<root>/<name>/``.

A prepared dataset is a folder of ``{train,test,unlabeled}_images.npy``, uint8 [N, H, W, C], and ``_labels.npy``,
int64 [N].
"""

import hashlib
import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.data.content import DIGITS
from ssl_bench.data.copies import Originals, of_rows, twins
from ssl_bench.data.dataset import Dataset, MissingData, Probe
from ssl_bench.data.mapped import MappedFiles
from ssl_bench.data.source import Chosen, Images, Source
from ssl_bench.errors import ConfigError, printable, require


class ArrayDataset(Dataset):
    """Prepared arrays in ``<root>/<name>/``.

    Args:
        name: the folder.
        torchvision: the class of torchvision from which ``ssl-bench prepare`` makes the arrays, one of those that
            ``data/prepare.py`` lists, or ``ImageFolder``: it makes them from a folder of photos, shrunk to ``size`` x
            ``size``.
        pretrain: the splits to pre-train on.
        held_out: numbers of images of the train split that nothing is trained on: to choose settings by, and to test
            on. They replace the test split, and a fixed permutation chooses them, the same in every run. Copies of
            these, images with the same bytes, are held out with them.

    Raises:
        InvalidValue: ``held_out`` has a number below 1, or there are other images to pre-train on.
    """

    has_pixels = True

    def __init__(
        self,
        name: str,
        torchvision: str,
        pretrain: Sequence[str],
        held_out: tuple[int, int] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.name, self.torchvision, self.pretrain_splits = name, torchvision, list(pretrain)
        self.folder, self.held_out = self.root / name, held_out
        self._mapped_files = MappedFiles()
        valid = held_out is None or (min(held_out) >= 1 and self.pretrain_splits == ["train"])
        remedy = "null or two numbers, [5000,10000] to choose by and to test on, with dataset.pretrain=[train]"
        require(valid, "held_out", held_out, remedy)

    @property
    def splits(self) -> list[str]:
        """Names of all splits that are read, those of pre-training first."""
        return ["train"] if self.held_out else list(dict.fromkeys([*self.pretrain_splits, "train", "test"]))

    def files(self) -> list[Path]:
        return [path for split in self.splits for path in self._paths(split)]

    def _paths(self, split: str) -> list[Path]:
        return [self.folder / f"{split}_{kind}.npy" for kind in ("images", "labels")]

    def check(self) -> int:
        counts = {split: len(self.arrays(split)[0]) for split in self.splits}
        count = sum(counts[split] for split in self.pretrain_splits)
        left, remedy = count - sum(self.held_out or ()), f"numbers with a sum below {count}, the images that there are"
        require(left > 0, "dataset.held_out", self.held_out, remedy)
        return len(self._parts[0][0]) if self.held_out else left

    def settings_of_images(self) -> dict[str, Any]:
        settings = super().settings_of_images()
        if self.held_out and (moved := self._parts[1]):
            files.say_once(f"dataset={self.name}: {moved} images are copies of held-out ones, and are held out too")
        return settings

    @cached_property
    def _content(self) -> str:
        """The hash of the files; another one since copies of held-out images are held out, if there are any."""
        content = super()._content
        moved = self.held_out and self._parts[1]
        return hashlib.sha256(f"{content} with copies".encode()).hexdigest()[:DIGITS] if moved else content

    @cached_property
    def _parts(self) -> tuple[list[Tensor], int]:
        """The images of the train split to train on, to choose by and to test on, and how many moved as copies.

        Raises:
            ConfigError: as :meth:`arrays`, or all images are copies of held-out ones.
        """
        images = self._opened("train")[0]
        choose, test = self.held_out or (0, 0)
        # RandomState has the same numbers in every version of NumPy.
        order = np.random.RandomState(0).permutation(len(images))
        first = np.array(twins(of_rows(images.reshape(len(images), -1), "train")))
        drawn, highest = np.zeros(len(order), dtype=int), np.zeros(len(order), dtype=int)
        drawn[order[len(order) - choose - test :]] = 1
        drawn[order[len(order) - test :]] = 2
        np.maximum.at(highest, first, drawn)
        part = highest[first]
        require((part == 0).any(), "dataset.held_out", self.held_out, "smaller numbers: all others are copies of these")
        return [torch.from_numpy(order[part[order] == place]) for place in range(3)], int((part != drawn).sum())

    def originals(self, split: Literal["train", "test"]) -> Originals | None:
        names = ["train"] if self.held_out else self.pretrain_splits if split == "train" else ["test"]
        rows = [images.permute(0, 2, 3, 1).flatten(1).numpy() for images, _ in map(self.arrays, names)]
        every = of_rows(rows[0] if len(rows) == 1 else np.concatenate(rows), " and ".join(names))
        return every.chosen(self._parts[0][0 if split == "train" else 2].tolist()) if self.held_out else every

    def pretrain(self) -> Source:
        if self.held_out:
            return self.split("train")
        opened = [self.arrays(split) for split in self.pretrain_splits]
        return self._images([images for images, _ in opened], torch.cat([labels for _, labels in opened]))

    def split(self, name: str) -> Source:
        if self.held_out is None:
            images, labels = self.arrays(name)
            return self._images([images], labels)
        images, labels = self.arrays("train")
        of_name = self._parts[0][("train", "choose", "test").index(name)]
        return Chosen(self._images([images], labels), of_name)

    def _images(self, parts: list[Tensor], labels: Tensor) -> Images:
        return Images(parts, labels, self._mapped_files.check)

    def probes(self) -> dict[str, Probe]:
        probe = super().probes()[""]
        return {"": replace(probe, choose=self.split("choose")) if self.held_out else probe}

    def arrays(self, split: str) -> tuple[Tensor, Tensor]:
        """Map one split into memory: uint8 [N, C, H, W] and int64 [N], -1 for an unlabelled image.

        Raises:
            MissingData: a file is missing.
            ConfigError: a file is damaged or empty, does not fit the dataset or the other file, or is another one than
                ``content`` says.
        """
        images, labels = self._opened(split)
        self.check_content()
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(np.array(labels))

    def _opened(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`arrays`, uint8 [N, H, W, C] and int64 [N]."""
        paths = self._paths(split)
        prepare = ["ssl-bench", "prepare", f"dataset={self.name}", f"paths.data={self.root}"]
        remake = f"`{printable(shlex.join(prepare))}`"
        for path in paths:
            if not os.path.lexists(path):
                remedy = f"get it with {remake}, or set SSL_BENCH_DATA or paths.data to the folder that has it"
                raise MissingData(f"dataset={self.name}: {path} is missing; {remedy}")
        images, labels = (self._mapped(path, f"remove it, and get it with {remake}") for path in paths)
        height, width, channels = images.shape[1:] if images.ndim == 4 else (0, 0, 0)
        for path, array, fits, needed in (
            (paths[0], images, images.dtype == np.uint8 and images.ndim == 4, "uint8 [N, height, width, channels]"),
            (paths[1], labels, labels.dtype == np.int64 and labels.ndim == 1, "int64 [N]"),
        ):
            if not fits:
                holds = f"{array.dtype} {list(array.shape)}"
                raise ConfigError(f"dataset={self.name}: {path} holds {holds}, not {needed}: replace it")
        if not height == width == self.size or channels != self.channels:
            raise ConfigError(
                f"dataset={self.name}: {paths[0]} has images of {height} x {width} pixels with {channels} channels, "
                f"not {self.size} x {self.size} with {self.channels}: set dataset.size and channels, or replace it"
            )
        if len(images) != len(labels):
            raise ConfigError(
                f"dataset={self.name}: {paths[0]} has {len(images)} images and {paths[1]} has {len(labels)} labels: "
                f"remove both, and get them with {remake}"
            )
        if len(images) == 0:
            raise ConfigError(f"dataset={self.name}: {paths[0]} has no images: remove it, and get it with {remake}")
        first, last = int(labels.min()), int(labels.max())
        if first < -1 or last >= self.num_classes:
            raise ConfigError(
                f"dataset={self.name}: {paths[1]} has labels from {first} to {last}, not from 0 to "
                f"{self.num_classes - 1} or -1 for an unlabelled image: set dataset.num_classes, or replace it"
            )
        return images, labels

    def _mapped(self, path: Path, remedy: str) -> np.ndarray:
        """Map an array into memory, copy-on-write, so that the file stays unchanged. Objects are never unpickled."""
        try:
            self._mapped_files.add(path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.lib.format.open_memmap(path, mode="c")
        except OSError as error:
            raise ConfigError(f"dataset={self.name}: {path} cannot be read ({error.strerror or error})") from error
        except Exception as error:  # NumPy raises many kinds of errors, and advises to unpickle the file
            reason = "is cut short, damaged or no array of numbers"
            raise ConfigError(f"dataset={self.name}: {path} {reason}: {remedy}") from error
