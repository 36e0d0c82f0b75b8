"""Hold out a part of the images, drawn by their names, so that a new image moves no other one to another split."""

import hashlib
from collections.abc import Sequence


def held_out(
    ids: Sequence[int], names: Sequence[str], labels: Sequence[int], twins: Sequence[int], share: float, seed: int
) -> set[int]:
    """Draw a share of the images of each class, at least one image of a class with several.

    All images with the same bytes are on one side, so that no copy of a test image is trained on.

    Args:
        ids: the images to draw from.
        names, labels: of all images.
        twins: the first image with the bytes of each one.
        share: between 0 and 1.
        seed: with the names it orders the images.
    """
    drawn, members = set[int](), dict[int, list[int]]()
    for i in ids:
        members.setdefault(labels[i], []).append(i)
    for of_class in members.values():
        count = max(round(share * len(of_class)), int(len(of_class) > 1))
        order = [twins[i] for i in sorted(of_class, key=lambda i: _random_key(names[twins[i]], seed))]
        chosen, left = {*order[:count]}, {*order[count:]}
        drawn |= chosen - left if left <= chosen else chosen  # some of a class stay to train on
    return {i for i in ids if twins[i] in drawn}


def _random_key(name: str, seed: int) -> str:
    """A text that orders the images at random."""
    return hashlib.sha256(f"{seed}/{name}".encode(errors="surrogateescape")).hexdigest()
