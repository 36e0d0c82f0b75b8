"""What every loss is."""

from typing import ClassVar

from torch import Tensor, nn

from ssl_bench.objective.contrast import Contrast


class Loss(nn.Module):
    """A value per anchor from cosines alone: a loss knows neither views nor ranks nor the framework.

    ``needs`` names what it asks of the negatives, so that a combination without it is refused before anything runs:
    ``negatives`` (at least one per anchor), ``aligned`` (candidates in the same order of images for every view),
    ``two_views``, ``dense`` (the matrix of cosines itself).
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:  # [V, B]
        raise NotImplementedError
