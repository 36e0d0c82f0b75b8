"""A target of which only a part of the training images has labels: a share of each class, or those of a list."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ssl_bench.config.from_disk import read_names
from ssl_bench.data.source import Chosen, Source, stratified
from ssl_bench.data.splits import few
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.target import SplitName, Target
from ssl_bench.seeding import stream


class FewLabels(Target):
    """The same network and test images with fewer training images; the features are those of the whole target.

    Args:
        whole: the target.
        ids: [n] of the training images.
    """

    def __init__(self, whole: Target, ids: Tensor) -> None:
        vars(self).update(vars(whole))
        self._whole, self._ids, self.train = whole, ids, Chosen(whole.train, ids)
        self._features = {}

    @classmethod
    def of(cls, whole: Target, labels: float | Mapping[str, str]) -> Target:
        """A target with a share of the images of each class, at least one, drawn by its seed; or with those of a list.

        Args:
            labels: one of ``evaluate.labels``; a list is ``{"file": its path, "content": its hash}``.

        Raises:
            ConfigError: a list cannot be used.
        """
        if isinstance(labels, Mapping):
            return cls(whole, listed(whole.train, Path(labels["file"]), labels["content"]))
        if labels == 1:
            return whole
        return cls(whole, stratified(whole.train.labels.cpu(), labels, stream("labels", whole.seed)))

    def names(self) -> list[str]:
        """The images with labels, as lines of a list for ``evaluate.labels``; by their numbers if they are no files."""
        ids, paths = self._ids.tolist(), _paths(self._whole.train)
        return [str(i) if paths is None else "/".join(paths[i].split("/")[-2:]) for i in ids]

    def features(self, name: SplitName) -> dict[str, Tensor]:
        if name not in self._features:
            whole, ids = self._whole.features(name), self._ids.to(self.device)
            self._features[name] = whole if name != "train" else {space: x[ids] for space, x in whole.items()}
        return self._features[name]


def listed(source: Source, file: Path, content: str) -> Tensor:
    """The images of a source that a file lists, int64 [n] in ascending order.

    A line is the name of an image file, as in SimCLR's lists for ImageNet, or its folder and name: ``birds/1.jpg``.

    Raises:
        ConfigError: the file has another hash than ``content``, or a name that is not the name of one image.
    """
    names, digest = read_names(file)
    if digest != content:
        raise ConfigError(f"evaluate.labels={file}: the list has changed since this run began: restore it")
    if (paths := _paths(source)) is None:
        remedy = "shares of the labels, or dataset to photos in folders that are not packed"
        raise ConfigError(f"evaluate.labels: these images have no file names to list: set evaluate.labels to {remedy}")
    places: dict[str, list[int]] = {name: [] for name in names}
    for i, path in enumerate(paths):
        folder, name = path.split("/")[-2:]
        for listed in {name, f"{folder}/{name}"} & places.keys():
            places[listed].append(i)
    if wrong := [name for name, ids in places.items() if len(ids) != 1]:
        what = f"{len(wrong):,} of {len(places):,} names are those of no training image, or of several ({few(wrong)})"
        raise ConfigError(f"evaluate.labels={file}: {what}: set evaluate.labels to a list of FOLDER/NAME")
    return torch.tensor([ids[0] for ids in places.values()]).unique()


def _paths(source: Source) -> list[str] | None:
    """The path of each image; None: they have no files."""
    from ssl_bench.data.photos import Photos  # only where it is used

    if isinstance(source, Chosen):
        whole = _paths(source.images)
        return whole and [whole[i] for i in source.ids.tolist()]
    return [source.name(i) for i in range(len(source))] if isinstance(source, Photos) and source.folder else None
