"""Photos with the objects of a COCO instance file: boxes, and maps of the object at each pixel, without pycocotools.

A point (x, y) is x pixels from the left and y from the top; the first pixel covers [0, 1) x [0, 1).
https://cocodataset.org/#format-data
"""

from pathlib import Path
from typing import Annotated

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
Polygons = list[Annotated[list[float], Meta(min_length=4)]]
Example = tuple[Tensor, dict[str, Tensor]]


class RunLengths(msgspec.Struct):
    """A mask as the lengths of its runs, outside and inside of the object in turn, down the columns."""

    counts: list[Annotated[int, Meta(ge=0)]]


class Entry(msgspec.Struct):
    """One entry of ``annotations``: an object with its box (x, y, width, height), and its mask.

    A mask is a list of polygons [x, y, x, y, ...], or run lengths.
    """

    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float] = (0, 0, 0, 0)
    area: float = 0
    iscrowd: int = 0
    segmentation: Polygons | RunLengths = []


class Photo(msgspec.Struct):
    """One entry of ``images``, whose sides are in pixels, with its objects."""

    id: int
    file_name: str
    width: Annotated[int, Meta(gt=0, lt=2**31)]
    height: Annotated[int, Meta(gt=0, lt=2**31)]
    objects: list[Entry] = []


class _Category(msgspec.Struct):
    id: int


class Instances(msgspec.Struct):
    """The content of an instance file."""

    images: list[Photo]
    annotations: list[Entry]
    categories: list[_Category]


def read_instances(path: Path) -> Instances:
    """Read an ``instances_*.json``.

    Raises:
        ConfigError: there is no such file, or it is not in COCO's format.
    """
    try:
        content = msgspec.json.decode(files.read_bytes(path, LARGEST), type=Instances)
        photos, categories = {photo.id: photo for photo in content.images}, {each.id for each in content.categories}
        for entry in content.annotations:
            if entry.category_id not in categories:
                raise ValueError(f"category_id {entry.category_id} is not among its categories")
            if (photo := photos.get(entry.image_id)) is not None:
                photo.objects.append(entry)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; it should be COCO's instances_*.json") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{path} is no file of COCO instances ({in_one_line(error)})") from error
    return content


class Boxes:
    """Photos with the boxes and classes of their objects, without crowds.

    Args:
        folder: of the photos.
        annotations: COCO's instance file of these photos.
        empty: whether photos without a box are entries too.

    Raises:
        ConfigError: the file cannot be read, or it has no box.
    """

    def __init__(self, folder: Path, annotations: Path, empty: bool) -> None:
        instances = read_instances(annotations)
        self.folder = folder
        # category_id of class 1, 2, ...: the ids have gaps, the classes have none
        self.categories = sorted(category.id for category in instances.categories)
        self.label = {category: i for i, category in enumerate(self.categories, 1)}
        boxes = [(photo, *self._boxes(photo)) for photo in instances.images]
        if not any(len(entry[1]) for entry in boxes):
            raise ConfigError(f"{annotations} has no boxes: set it to one that has")
        self.entries = [entry for entry in boxes if len(entry[1]) or empty]

    def _boxes(self, photo: Photo) -> tuple[Tensor, Tensor]:
        """Boxes [n, 4], clipped to the photo and without empty ones, and their labels [n]."""
        objects = [entry for entry in photo.objects if not entry.iscrowd]
        boxes = torch.tensor([entry.bbox for entry in objects]).view(-1, 4).float()
        boxes[:, 2:] += boxes[:, :2]
        boxes = boxes.minimum(torch.tensor([photo.width, photo.height] * 2)).clamp(min=0)
        labels = torch.tensor([self.label[entry.category_id] for entry in objects], dtype=torch.int64)
        has_area = (boxes[:, 2:] - boxes[:, :2] > 1e-3).all(1)
        return boxes[has_area], labels[has_area]

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
    for number, entry in enumerate(sorted(photo.objects, key=lambda o: (-o.iscrowd, -o.area)), 1):
        objects[mask(entry.segmentation, photo, size)] = CROWD if entry.iscrowd else number
    return objects


def mask(segmentation: Polygons | RunLengths, photo: Photo, size: int) -> NDArray[np.bool_]:
    """Draw the pixels [size, size] of an object.

    Raises:
        ConfigError: it is not of the photo's size.
    """
    width, height = photo.width, photo.height
    if isinstance(segmentation, RunLengths):
        if sum(segmentation.counts) != width * height:
            raise ConfigError(f"{photo.file_name}: the counts of a mask must have the sum {width} x {height}, its size")
        at = centres(size, width) * height + centres(size, height)[:, None]  # pixels in the order of the runs
        return np.searchsorted(np.cumsum(segmentation.counts), at, side="right") % 2 == 1
    canvas = Image.new("1", (size, size))
    draw = ImageDraw.Draw(canvas)
    for points in segmentation:
        pairs = zip(points[::2], points[1::2], strict=False)  # in PIL, pixel 0 lies at 0, not 1/2
        draw.polygon([(x * (size / width) - 0.5, y * (size / height) - 0.5) for x, y in pairs], fill=1)
    return np.array(canvas)


def centres(cells: int, length: int) -> NDArray[np.int64]:
    """Indices, out of ``length``, at the middles of ``cells`` equal cells."""
    return ((np.arange(cells) + 0.5) * length / cells).astype(np.int64)
