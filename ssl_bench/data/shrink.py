"""Photos shrunk to small arrays: ImageNet 64 x 64.

Pillow's box filter resizes the whole photo to a square and ignores its proportions, as in Chrabaszcz, Loshchilov and
Hutter, A Downsampled Variant of ImageNet as an Alternative to the CIFAR datasets (arXiv 1707.08819), section 3.
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from torch import Tensor

from ssl_bench import files
from ssl_bench.data.packed import Track, chunks
from ssl_bench.data.photos import Photos


def shrink(photos: Photos, folder: Path, split: str, size: int, track: Track) -> None:
    """Write ``<split>_images.npy``, uint8 [N, size, size, 3], chunk by chunk, and then ``<split>_labels.npy``."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(photos), size, size, 3)}

    def fill(file: BinaryIO) -> None:
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
        for chunk in track(chunks(len(photos))):
            for array in photos.map(lambda image: box(image, size), chunk):
                file.write(array.tobytes())

    files.write(folder / f"{split}_images.npy", fill)
    files.write(folder / f"{split}_labels.npy", lambda file: np.save(file, photos.labels.numpy()))


def box(image: Tensor, size: int) -> np.ndarray:
    """Shrink one photo: uint8 [3, h, w] -> uint8 [size, size, 3]."""
    from PIL import Image

    photo = Image.fromarray(image.permute(1, 2, 0).numpy())
    return np.asarray(photo.resize((size, size), Image.Resampling.BOX))
