"""Prepared arrays, the order of the images, the scattered digits, and every option of ``dataset``."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from ssl_bench.config.build import directory
from ssl_bench.config.compose import load
from ssl_bench.data.batch import Loader
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.digits import scatter
from ssl_bench.data.source import Images
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.knn import knn_predict
from ssl_bench.training import build
from tests.ranks import on_two_ranks


def arrays(folder: Path, split: str, n: int, size: int = 32, seed: int = 0) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    np.save(folder / f"{split}_images.npy", images)
    np.save(folder / f"{split}_labels.npy", np.arange(n) % 10 if split != "unlabeled" else np.full(n, -1))
    return images


def dataset(root: Path, name: str) -> Dataset:
    return build.dataset(load([f"dataset={name}", f"paths.data={root}"]))


def loader(n: int, batch_size: int, seed: int = 0) -> Loader:
    images = torch.arange(n).to(torch.uint8)[:, None, None, None].expand(n, 1, 4, 4)
    views = Views(4, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.5, grayscale=0)
    device = torch.device("cpu")
    return Loader(Images([images], torch.arange(n)), [views] * 2, batch_size, device, seed, torch.float32)


NAMED = {p.stem for p in (directory() / "dataset").glob("*.yaml")} - {"arrays", "folder", "hf"}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_each_dataset_has_its_images_or_names_what_is_missing(tmp_path: Path, name: str) -> None:
    config = load([f"dataset={name}", f"paths.data={tmp_path}"])
    stated = config["dataset"]["train_images"]
    assert isinstance(stated, int) and config["epochs"] > 0 and config["dataset"]["knn_k"] > 0
    command = rf"`ssl-bench prepare dataset=\w+ paths\.data={tmp_path}`"
    try:
        assert build.dataset(config).check() == stated
    except ConfigError as error:
        assert re.search(f"{command}|{tmp_path}/imagenet/train is missing; .* set SSL_BENCH_DATA", str(error))


def test_an_epoch_has_no_image_twice_and_the_next_epoch_has_another_order() -> None:
    made = loader(50, 8)
    epochs = [torch.cat([made.ids(e * 6 + i) for i in range(6)]) for e in range(3)]
    assert made.steps_per_epoch == 6 and all(len(set(epoch.tolist())) == 48 for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], torch.cat([loader(50, 8, seed=1).ids(i) for i in range(6)]))
    fresh = loader(50, 8)  # the order does not depend on earlier calls
    assert torch.equal(epochs[2], torch.cat([fresh.ids(12 + i) for i in range(6)]))


def test_batches_hold_the_images_of_their_ids() -> None:
    made = loader(50, 8)
    batches = [step.batch() for step in made.steps(3, 9)]
    assert len(batches) == 6
    for step, batch in enumerate(batches, 3):
        assert torch.equal(batch.ids, made.ids(step)) and torch.equal(batch.labels, batch.ids)
        for view in batch.views:
            assert torch.equal((view[:, 0, 0, 0] * 255).round().long(), batch.ids)


def _rank_views(rank: int) -> tuple[Tensor, Tensor]:
    batch = next(_noise_loader().steps(5, 6)).batch()
    return batch.ids, torch.stack(batch.views)


def _noise_loader() -> Loader:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 3, 16, 16), dtype=np.uint8))
    views = Views(16, jitter=(0.4, 0.4, 0.4, 0.1), grayscale=0.2, blur=0.5)
    return Loader(Images([images], torch.zeros(40).long()), [views] * 2, 12, torch.device("cpu"), 0, torch.float32)


def test_ranks_share_a_batch_and_its_random_views() -> None:
    batch = next(_noise_loader().steps(5, 6)).batch()
    ranks = on_two_ranks(_rank_views)
    assert torch.equal(torch.cat([ids for ids, _ in ranks]), batch.ids)
    assert torch.equal(torch.cat([views for _, views in ranks], dim=1), torch.stack(batch.views))
    assert not torch.equal(batch.views[0], batch.views[1])


def test_a_split_in_parts_reads_like_one_array() -> None:
    whole = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (9, 3, 5, 5), dtype=np.uint8))
    parts = Images([whole[:4], whole[4:5], whole[5:]], torch.arange(9))
    ids = torch.tensor([8, 0, 4, 3, 5, 4])
    assert torch.equal(parts.take(ids), whole[ids])
    assert torch.equal(parts.to(torch.device("cpu")).take(ids), whole[ids])


def test_stl10_trains_on_unlabelled_images_and_evaluates_labelled_images(tmp_path: Path) -> None:
    counts = {"train": 6, "test": 4, "unlabeled": 9}
    written = {split: arrays(tmp_path / "stl10", split, n, 96, n) for split, n in counts.items()}
    stl10 = dataset(tmp_path, "stl10")
    images = stl10.pretrain()
    assert isinstance(images, Images) and stl10.check() == len(images) == 15
    assert images.labels.tolist() == [0, 1, 2, 3, 4, 5] + [-1] * 9
    assert np.array_equal(images.take(torch.tensor([14])).permute(0, 2, 3, 1)[0].numpy(), written["unlabeled"][8])
    assert len(stl10.split("train")) == 6 and len(stl10.split("test")) == 4


def test_scattered_digits() -> None:
    images, labels = scatter(20)
    assert images.shape == (1797, 1, 20, 20) and images.dtype == torch.uint8
    assert torch.equal(images, scatter.__wrapped__(20)[0])  # made again
    assert labels.tolist() == load_digits().target.tolist()
    pixels = images.flatten(1).float()
    ranking = knn_predict(pixels[1347:], pixels[:1347], labels[:1347], k=20, temperature=0.1, num_classes=10)
    assert float((ranking[:, 0] == labels[1347:]).float().mean()) == pytest.approx(0.636, abs=0.02)


def test_a_split_of_the_digits_may_be_written_to() -> None:
    """They are made once in a process."""
    dataset: Any = build.dataset(load([]))
    for split in ("train", "test"):
        first, second = dataset.split(split), dataset.split(split)
        expected = first.parts[0].clone(), first.labels.clone()
        first.parts[0].zero_()
        first.labels.zero_()
        for each in (second, dataset.split(split)):
            assert torch.equal(each.parts[0], expected[0]) and torch.equal(each.labels, expected[1])
