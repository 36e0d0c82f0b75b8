"""Pairs of correlated Gaussian vectors, whose mutual information is known (Zhu et al., EqCo, arXiv 2010.01929,
appendix C).

X ~ N(0, 1) in d dimensions and Y = rho X + sqrt(1 - rho^2) noise have I(X; Y) = -d/2 log(1 - rho^2).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssl_bench.data.dataset import Dataset
from ssl_bench.data.source import ImageBatch, Source
from ssl_bench.errors import ConfigError, require

COUNT = 1024  # pairs of a split, which has no end: a run asks for a number, of which each rank has a share


@dataclass(frozen=True, eq=False)
class Pairs(Source):
    """Pairs of vectors in place of images.

    Attributes:
        information: of X and Y, in nats, positive.
        dimensions: of X and of Y.
    """

    information: float
    dimensions: int

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        return torch.full((COUNT,), -1)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw ``count`` pairs: x and y, float32 [count, dimensions]."""
        rho = math.sqrt(1 - math.exp(-2 * self.information / self.dimensions))
        x, noise = torch.randn(2, count, self.dimensions, generator=generator)
        return x, rho * x + math.sqrt(1 - rho**2) * noise

    def take(self, ids: Tensor) -> ImageBatch:
        raise ConfigError("dataset=gaussians has pairs of vectors and no images")


class Gaussians(Dataset):
    """Pairs of correlated Gaussian vectors.

    Args:
        information: mutual information of a pair, in nats.
        dimensions: of each of its vectors.
    """

    has_images = False

    def __init__(self, information: float, dimensions: int, **common: Any) -> None:
        super().__init__(**common)
        require(information > 0, "information", information, "a positive number")
        require(dimensions >= 1, "dimensions", dimensions, "1 or more")
        self.pairs = Pairs(information, dimensions)

    def check(self) -> int:
        return COUNT

    def pretrain(self) -> Pairs:
        return self.pairs

    def split(self, name: str) -> Pairs:
        return self.pairs
