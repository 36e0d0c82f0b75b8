"""Padded images, and batches in order."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ssl_bench.data.batch import AHEAD, Reader
from ssl_bench.data.pixels import padded
from ssl_bench.data.source import ImageBatch, Source
from ssl_bench.data.views import Views

SIDES = [(300, 200), (290, 190), (100, 140), (301, 256), (17, 9), (385, 385), (384, 384), (260, 140)]
CPU = torch.device("cpu")


def photos(channels: int = 3) -> list[Tensor]:
    """Images of many sizes, channels last in memory, as decoders make them."""
    generator = torch.Generator().manual_seed(0)
    made = (torch.randint(256, (*sides, channels), dtype=torch.uint8, generator=generator) for sides in SIDES)
    return [image.permute(2, 0, 1) for image in made]


class Many(Source):
    """Images of many sizes; reading image i takes ``delays[i]`` seconds."""

    def __init__(self, images: list[Tensor], delays: list[float]) -> None:
        self.images, self.delays, self.labels = images, delays, torch.arange(len(images)) * 10
        self.threads: set[str] = set()

    def take(self, ids: Tensor) -> ImageBatch:
        self.threads.add(threading.current_thread().name)
        time.sleep(self.delays[int(ids[0])])
        return [self.images[i] for i in ids.tolist()]


# ---- padding


@pytest.mark.parametrize("channels", [3, 5])
def test_padded_images_are_the_images(channels: int) -> None:
    images, batches = photos(channels), [*padded(photos(channels))]
    assert [rows.tolist() for rows, _ in batches] == [[0, 1, 3, 7], [2], [4], [5], [6]]
    assert [batch.shape[2:] for _, batch in batches[:3]] == [(301, 256), (100, 140), (17, 9)]
    for rows, batch in batches:
        assert batch.permute(0, 2, 3, 1).is_contiguous()
        for i, image in zip(rows, batch, strict=True):
            assert torch.equal(image[:, : SIDES[i][0], : SIDES[i][1]], images[i])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_views_of_padded_images_are_those_of_each_one(interpolation: Any) -> None:
    views = Views(32, interpolation=interpolation, jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5)
    height, width = torch.tensor(SIDES).unbind(1)
    drawn = views.draw(len(SIDES), height, width, torch.Generator().manual_seed(0))
    for dtype in (torch.float32, torch.float64):
        made = views.apply(photos(), drawn, dtype, masked=True)
        torch.testing.assert_close(made, views.apply(photos(), drawn, dtype, masked=False), rtol=0, atol=2e-5)


# ---- order


def test_batches_come_in_order_from_two_threads() -> None:
    """A slow batch in the middle does not let a later one pass."""
    delays = [0.03 if i == 2 else 0.0 for i in range(len(SIDES))]
    source = Many(photos(), delays)
    batches = torch.arange(len(SIDES)).split(1)
    read = [*Reader(source, CPU).batches(batches)]
    assert [int(batch.ids) for batch in read] == [*range(len(SIDES))]
    assert [int(batch.labels) for batch in read] == [10 * i for i in range(len(SIDES))]
    assert all(torch.equal(batch.images[0], source.images[i]) for i, batch in enumerate(read))
    assert len(source.threads) == 2 and all(name.startswith("images") for name in source.threads)


def test_only_two_batches_are_read_in_advance() -> None:
    source, asked = Many(photos(), [0.0] * len(SIDES)), []

    def ids() -> Iterator[Tensor]:
        for i in range(len(SIDES)):
            asked.append(i)
            yield torch.tensor([i])

    for i, _ in enumerate(Reader(source, CPU).batches(ids())):
        assert len(asked) == min(i + 1 + AHEAD, len(SIDES))


def test_an_error_of_a_thread_reaches_the_training_in_its_turn() -> None:
    source = Many(photos(), [0.0] * 3)
    read = Reader(source, CPU).batches(torch.arange(5).split(1))
    assert [int(next(read).ids) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(IndexError):
        next(read)
