"""Copies of images, in one set or in two: images with the same bytes, of files or of arrays.

A mark is read of each image, a small part of its bytes. Only images that share one are read wholly, so that 60,000
images take less than a second.
"""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

MARKED = 32  # bytes in the middle of an image in an array


@dataclass(frozen=True)
class Originals:
    """Some images that may have copies.

    Attributes:
        marks: of each image: copies have the same, other images may; None: it cannot be read.
        digest: hash of all bytes of an image.
        name: of an image, in sentences.
    """

    marks: Sequence[Hashable]
    digest: Callable[[int], Hashable]
    name: Callable[[int], str] = str

    def chosen(self, ids: Sequence[int]) -> "Originals":
        """Some of these images, in another order."""
        return Originals([self.marks[i] for i in ids], lambda i: self.digest(ids[i]), lambda i: self.name(ids[i]))


def of_rows(rows: np.ndarray, split: str) -> Originals:
    """The images of an array, uint8 [N, D], of a split."""
    start = max(0, (rows.shape[1] - MARKED) // 2)
    marks = [row.tobytes() for row in rows[:, start : start + MARKED]]
    return Originals(marks, lambda i: hashlib.sha256(rows[i]).digest(), lambda i: f"image {i} of {split}")


def twins(images: Originals) -> list[int]:
    """The first image with the bytes of each one."""
    alike: dict[Hashable, list[int]] = {}
    for i, mark in enumerate(images.marks):
        alike.setdefault(mark, []).append(i)
    first, found = dict[Hashable, int](), list(range(len(images.marks)))
    for mark, ids in alike.items():
        for i in ids if len(ids) > 1 and mark is not None else ():
            found[i] = first.setdefault(images.digest(i), i)
    return found


def copies(images: Originals, among: Originals) -> dict[int, int]:
    """The images that others have copies of, each with the first of these."""
    count = len(among.marks)
    both = Originals(
        [*among.marks, *images.marks], lambda i: among.digest(i) if i < count else images.digest(i - count)
    )
    return {i: first for i, first in enumerate(twins(both)[count:]) if first < count}
