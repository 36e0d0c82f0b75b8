"""A target of which only a part of the training images has labels, drawn from each class."""

import copy

from torch import Tensor

from ssl_bench.data.arrays import Chosen, stratified
from ssl_bench.evaluate.target import SplitName, Target
from ssl_bench.seeding import stream


class FewLabels(Target):
    """The same network and test images with fewer training images; the features are those of the whole target.

    Args:
        whole: the target.
        ids: [n] of the training images.
    """

    def __init__(self, whole: Target, ids: Tensor) -> None:
        vars(self).update(vars(copy.copy(whole)))
        self._whole, self._ids, self.train = whole, ids, Chosen(whole.train, ids)

    @classmethod
    def of(cls, whole: Target, share: float) -> Target:
        """A target with a share of the images of each class, at least one, drawn by its seed."""
        if share == 1:
            return whole
        return cls(whole, stratified(whole.train.labels.cpu(), share, stream("labels", whole.seed)))

    def features(self, name: SplitName) -> dict[str, Tensor]:
        features = self._whole.features(name)
        if name != "train":
            return features
        return {space: rows[self._ids.to(rows.device)] for space, rows in features.items()}
