"""Padded images, batches in order, and the order of a GPU's copies, recorded without a GPU."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ssl_bench.data import reader
from ssl_bench.data.pixels import by_size, pad
from ssl_bench.data.reader import Reader
from ssl_bench.data.source import ImageBatch, Source
from ssl_bench.data.views import ViewParameters, Views

SIDES = [(300, 200), (290, 190), (100, 140), (301, 256), (17, 9), (385, 385), (384, 384), (260, 140)]
CPU = torch.device("cpu")


def photos(channels: int = 3) -> list[Tensor]:
    """Images of many sizes, channels last in memory, as decoders make them."""
    generator = torch.Generator().manual_seed(0)
    made = (torch.randint(256, (*sides, channels), dtype=torch.uint8, generator=generator) for sides in SIDES)
    return [image.permute(2, 0, 1) for image in made]


def parameters(views: Views, seed: int) -> ViewParameters:
    height, width = torch.tensor(SIDES).unbind(1)
    return views.draw(len(SIDES), height, width, torch.Generator().manual_seed(seed))


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
    images = photos(channels)
    padded = pad(images)
    assert len(padded) == len(images) and all(torch.equal(a, b) for a, b in zip(padded, images, strict=True))
    assert pad(padded) is padded
    assert [len(batch) for batch in padded.batches] == [4, 1, 1, 1, 1]
    assert [batch.shape[2:] for batch in padded.batches[:3]] == [(301, 256), (100, 140), (17, 9)]
    assert padded.order.tolist() == [0, 1, 3, 7, 2, 4, 5, 6]
    assert all(batch.permute(0, 2, 3, 1).is_contiguous() for batch in padded.batches)
    storages = {batch.untyped_storage().data_ptr() for batch in padded.batches}
    assert {image.untyped_storage().data_ptr() for image in padded} == storages  # they share the batches' memory
    copy = padded.copied([batch.clone() for batch in padded.batches], padded.order.clone())
    assert all(torch.equal(a, b) for a, b in zip(copy, images, strict=True))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_views_of_padded_images_are_the_same_whatever_the_padding_holds(interpolation: Any) -> None:
    views = Views(32, interpolation=interpolation, jitter=(0.4, 0.4, 0.4, 0.1), blur=0.5)
    images, once = photos(), pad(photos())
    for batch, group in zip(once.batches, by_size(images, 128), strict=True):
        batch.fill_(255)
        for row, i in zip(batch, group, strict=True):
            row[:, : images[i].shape[1], : images[i].shape[2]] = images[i]
    drawn = parameters(views, 0)
    for dtype in (torch.float32, torch.float64):
        made = views.apply(once, drawn, dtype, masked=True)
        assert torch.equal(made, views.apply(images, drawn, dtype, masked=True))
        torch.testing.assert_close(made, views.apply(images, drawn, dtype, masked=False), rtol=0, atol=2e-5)


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
        assert len(asked) == min(i + 1 + reader.AHEAD, len(SIDES))


def test_an_error_of_a_thread_reaches_the_training_in_its_turn() -> None:
    source = Many(photos(), [0.0] * 3)
    read = Reader(source, CPU).batches(torch.arange(5).split(1))
    assert [int(next(read).ids) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(IndexError):
        next(read)


# ---- copies to a GPU
