"""Accuracies of the classes that a classifier ranks for each test image.

Shapes: N test images, R ranked classes of an image, C classes.
"""

from collections.abc import Iterator

from torch import Tensor


class Accuracy(float):
    """A share of test images.

    Attributes:
        right: bool [N], the images that were classified correctly, in the order of the split.
    """

    right: Tensor

    @classmethod
    def of(cls, right: Tensor) -> "Accuracy":
        """The share of true values in ``right``, bool [N]."""
        share = cls(right.double().mean().item())
        share.right = right
        return share


def top_accuracies(
    ranking: Tensor, labels: Tensor, num_classes: int, per_class: bool = False
) -> Iterator[tuple[str, float]]:
    """Yield top1, with more than five classes top5, and if requested the top1 of each class.

    Args:
        ranking: [N, R] classes, best first, R at least 5 or C.
        labels: [N].
        num_classes: C.
        per_class: also yield top1_class0 ..., for the classes with images.
    """
    correct = ranking == labels[:, None]
    yield "top1", Accuracy.of(correct[:, 0])
    if num_classes > 5:
        yield "top5", correct[:, :5].any(1).double().mean().item()
    for c in labels.unique().tolist() if per_class else ():
        yield f"top1_class{c}", correct[labels == c, 0].double().mean().item()
