"""A data set with a part of its training images, drawn from each class, and all of its test images."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ssl_bench.data.copies import Originals
from ssl_bench.data.dataset import Dataset, Probe
from ssl_bench.data.source import Chosen, Source, stratified


class Share(Dataset):
    """A share of another data set's training images, the same in every run; a smaller share is a part of a larger one.

    Args:
        whole: the other data set.
        share: in (0, 1), of each class, rounded, at least one image.
    """

    def __init__(self, whole: Dataset, share: float) -> None:
        vars(self).update({name: value for name, value in vars(whole).items() if name != "_content"})
        self.whole, self.share = whole, share
        self.one_label, self.has_pixels, self.has_images = whole.one_label, whole.has_pixels, whole.has_images

    @cached_property
    def _images(self) -> Chosen:
        return self._part(self.whole.pretrain())

    def _part(self, source: Source) -> Chosen:
        return Chosen(source, stratified(source.labels, self.share, 0))

    def check(self) -> int:
        self.whole.check()
        return len(self._images)

    def files(self) -> Sequence[Path]:
        return self.whole.files()

    def settings_of_images(self) -> dict[str, Any]:
        settings, count = self.whole.settings_of_images(), self.check()
        neighbours = {"knn_k": max(1, min(settings["knn_k"], count // 50))} if "knn_k" in settings else {}
        least = settings.get("least_labels")
        rare = {"least_labels": max(1, round(self.share * least))} if least else {}
        return settings | {"train_images": count} | neighbours | rare

    def pretrain(self) -> Source:
        return self._images

    def split(self, name: str) -> Source:
        source = self.whole.split(name)
        return self._part(source) if name == "train" else source

    def originals(self, split: Literal["train", "test"]) -> Originals | None:
        every = self.whole.originals(split)
        return every.chosen(self._images.ids.tolist()) if every and split == "train" else every

    def class_names(self) -> list[str]:
        return self.whole.class_names()

    def doubts(self) -> list[str]:
        return self.whole.doubts()

    def probes(self) -> dict[str, Probe]:
        return {name: replace(probe, train=self._part(probe.train)) for name, probe in self.whole.probes().items()}

    def __getattr__(self, name: str) -> Any:
        """Take other attributes from the whole data set, such as the sentence about its images."""
        if name == "whole":
            raise AttributeError(name)
        return getattr(self.whole, name)
