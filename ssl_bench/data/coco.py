"""Photos with the objects of a COCO instance file: boxes, and maps of the object at each pixel, without pycocotools.

A point (x, y) is x pixels from the left and y from the top; the first pixel covers [0, 1) x [0, 1).
https://cocodataset.org/#format-data
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps
from torch import Tensor

from ssl_bench import files
from ssl_bench.data.photos import read_photo
from ssl_bench.errors import ConfigError, in_one_line

LARGEST = 2**31  # bytes: COCO's instances_train2017.json has 470 MB
BACKGROUND, CROWD = 0, -1
Example = tuple[Tensor, dict[str, Tensor]]


class Photo(msgspec.Struct):
    """One entry of ``images``, whose sides are in pixels, and its ``annotations``, unchanged from the file."""

    id: int
    file_name: str
    width: Annotated[int, Meta(gt=0, lt=2**31)]
    height: Annotated[int, Meta(gt=0, lt=2**31)]
    objects: list[dict[str, Any]] = []


class _Category(msgspec.Struct):
    id: int


class Instances(msgspec.Struct):
    """The content of an instance file."""

    images: list[Photo]
    annotations: list[dict[str, Any]]
    categories: list[_Category]


def read_instances(path: Path) -> Instances:
    """Read an ``instances_*.json``.

    Raises:
        ConfigError: there is no such file, or it is not in COCO's format.
    """
    try:
        content = msgspec.json.decode(files.read_bytes(path, LARGEST), type=Instances)
        photos = {photo.id: photo for photo in content.images}
        for entry in content.annotations:
            if (photo := photos.get(entry["image_id"])) is not None:
                photo.objects.append(entry)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; it should be COCO's instances_*.json") from error
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no file of COCO instances ({in_one_line(error)})") from error
    for name in (photo.file_name for photo in content.images):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ConfigError(f"{path}: {name} leads out of the folder of the photos")
    return content


class Boxes:
    """Photos with the boxes and classes of their objects, without crowds.

    Args:
        folder: of the photos.
        annotations: COCO's instance file of these photos.
        empty: keep photos without a box too.

    Raises:
        ConfigError: the file cannot be read, or it has no box.
    """

    def __init__(self, folder: Path, annotations: Path, empty: bool) -> None:
        instances = read_instances(annotations)
        self.folder = folder
        # category_id of class 1, 2, ...: the ids have gaps, the classes have none
        self.categories = sorted(category.id for category in instances.categories)
        self.label = {category: i for i, category in enumerate(self.categories, 1)}
        try:
            boxes = [(photo, *self._boxes(photo)) for photo in instances.images]
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(f"{annotations} has an object with a wrong bbox or category_id ({error})") from error
        if not any(len(entry[1]) for entry in boxes):
            raise ConfigError(f"{annotations} has no boxes: set it to one that has")
        self.entries = [entry for entry in boxes if len(entry[1]) or empty]

    def _boxes(self, photo: Photo) -> tuple[Tensor, Tensor]:
        """Boxes [n, 4], clipped to the photo and without empty ones, and their labels [n]."""
        objects = [entry for entry in photo.objects if not entry.get("iscrowd")]
        boxes = torch.tensor([entry["bbox"] for entry in objects]).view(-1, 4).float()
        boxes[:, 2:] += boxes[:, :2]
        boxes = boxes.minimum(torch.tensor([photo.width, photo.height] * 2)).clamp(min=0)
        labels = torch.tensor([self.label[entry["category_id"]] for entry in objects], dtype=torch.int64)
        kept = (boxes[:, 2:] - boxes[:, :2] > 1e-3).all(1)
        return boxes[kept], labels[kept]

    def __len__(self) -> int:
        return len(self.entries)

    def take(self, index: int, mirrored: bool = False) -> Example:
        """Read a photo [3, H, W] in [0, 1] and its ``boxes`` [n, 4], as x1, y1, x2, y2, and ``labels`` [n] from 1.

        Raises:
            RunError: the photo cannot be read.
        """
        photo, boxes, labels = self.entries[index]
        image = read_photo(self.folder / photo.file_name)
        if mirrored:
            image = ImageOps.mirror(image)
            x1, y1, x2, y2 = boxes.unbind(1)
            boxes = torch.stack([photo.width - x2, y1, photo.width - x1, y2], 1)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return pixels, {"boxes": boxes, "labels": labels, "image_id": torch.tensor(photo.id)}


def instance_map(photo: Photo, size: int) -> NDArray[np.int64]:
    """The object at each pixel of the photo resized to a square: [size, size].

    A pixel is BACKGROUND, the number 1, 2, ... of its object, or CROWD: a group of objects without separate masks,
    which is no region. Where objects overlap, the pixel belongs to the smaller one.
    """
    objects = np.full((size, size), BACKGROUND)
    order = sorted(photo.objects, key=lambda o: (-o.get("iscrowd", 0), -o["area"]))
    for number, entry in enumerate(order, 1):
        inside = mask(entry["segmentation"], photo.width, photo.height, size)
        objects[inside] = CROWD if entry.get("iscrowd") else number
    return objects


def mask(segmentation: Any, width: int, height: int, size: int) -> NDArray[np.bool_]:
    """Draw the pixels [size, size] of an object given as polygons [[x, y, x, y, ...], ...] or as a run-length encoding.

    Raises:
        ConfigError: the run-length encoding is compressed; in the files that COCO publishes none is.
    """
    if isinstance(segmentation, dict):
        if not isinstance(segmentation["counts"], list):
            raise ConfigError("a compressed mask cannot be read: write its counts as a list (COCO's uncompressed RLE)")
        inside = np.arange(len(segmentation["counts"])) % 2 == 1  # runs outside and inside alternate, down the columns
        full = np.repeat(inside, segmentation["counts"]).reshape(width, height).T
        return full[np.ix_(centres(size, height), centres(size, width))]
    canvas = Image.new("1", (size, size))
    draw = ImageDraw.Draw(canvas)
    for points in segmentation:
        scaled = np.reshape(points, (-1, 2)) * (size / width, size / height) - 0.5  # in PIL, pixel 0 lies at 0, not 1/2
        draw.polygon([(x, y) for x, y in scaled.tolist()], fill=1)
    return np.array(canvas)


def centres(cells: int, length: int) -> NDArray[np.int64]:
    """Indices, out of ``length``, at the middles of ``cells`` equal cells."""
    return ((np.arange(cells) + 0.5) * length / cells).astype(np.int64)
