"""The run_id depends on the contents of images, weights and plugins, since a file may change under the same name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import content_hashes, recipe_id, run_id
from ssl_bench.data.dataset import content_of
from ssl_bench.papers.cell_runs import finished, trained
from ssl_bench.training.finished import load_run, read_config
from tests.conftest import SMALL, only_run
from tests.door.door import refuses

CPU = torch.device("cpu")
Train = Callable[..., tuple[int, str]]
ARRAYS = ["dataset=mnist", "backbone=resnet_digits", "batch_size.size=16", "max_steps=1", "augment=none"]
ARRAYS += ["paths.data=data", "evaluate.watch=0"]
PHOTOS = ["dataset=imagenet", "dataset.num_classes=2", "dataset.size=16", "dataset.resize=16", "dataset.workers=1"]
PHOTOS += ["backbone=resnet_digits", "augment=none", "paths.data=data"]


def write_arrays(count: int = 40, name: str = "mnist", seed: int = 0) -> None:
    drawn = np.random.default_rng(seed)
    Path("data", name).mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        np.save(f"data/{name}/{split}_images.npy", drawn.integers(0, 256, (count, 28, 28, 1), np.uint8))
        np.save(f"data/{name}/{split}_labels.npy", np.arange(count) % 10)


def change(file: str, place: tuple[int, ...]) -> None:
    array = np.load(f"data/mnist/{file}.npy")
    array[place] ^= 1
    np.save(f"data/mnist/{file}.npy", array)


def change_pixel() -> None:
    change("test_images", (-1, 3, 4, 0))


def write_photos(classes: str = "ab", color: int = 9) -> None:
    for split in ("train", "val"):
        for name in classes:
            for number in range(3):
                path = Path(f"data/imagenet/{split}/{name}/{number}.JPEG")
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (20, 20), (color, number, ord(name))).save(path)


def one_more_photo() -> None:
    Path("data/imagenet/train/a/9.JPEG").write_bytes(Path("data/imagenet/train/a/0.JPEG").read_bytes())


CHANGES: list[Any] = [
    # what is written, the overrides, what changes
    pytest.param(write_arrays, ARRAYS, lambda: write_arrays(50), id="more images"),
    pytest.param(write_arrays, ARRAYS, change_pixel, id="a pixel of the test images"),
    pytest.param(write_arrays, ARRAYS, lambda: change("train_labels", (7,)), id="a label"),
    pytest.param(write_arrays, ["dataset=randbit_mnist", "paths.data=data"], change_pixel, id="with bits"),
    pytest.param(write_arrays, ["dataset=multi_digits", "paths.data=data"], change_pixel, id="digits on a canvas"),
    pytest.param(write_photos, PHOTOS, one_more_photo, id="one more photo"),
    pytest.param(write_photos, PHOTOS, lambda: write_photos(color=8), id="other photos of the same names"),
]


def identity(overrides: list[str]) -> tuple[str, str]:
    """The recipe and the run_id of what a command would train."""
    config = find_prepared(load(overrides))
    assert content_hashes(config)
    return recipe_id(config), run_id(config)


@pytest.mark.parametrize(("write", "overrides", "change"), CHANGES)
def test_what_lies_on_the_disk_is_in_the_identity(
    write: Callable[[], None], overrides: list[str], change: Callable[[], None]
) -> None:
    write()
    recipe, first = identity(overrides)
    assert identity(overrides) == (recipe, first) != (recipe, recipe)
    change()
    other_recipe, second = identity(overrides)
    assert other_recipe == recipe and second != first


def test_changed_arrays_are_another_run(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    write_arrays(40)
    evaluated = [*ARRAYS, "evaluate=knn", "evaluate.knn.k=3"]
    assert train(*evaluated)[0] == 0
    first = only_run()
    content = json.loads((first / "results.json").read_text())
    assert content["config"]["dataset"]["train_images"] == content["facts"]["train_images"] == 40
    assert content["environment"]["images"] == content["config"]["dataset"]["content"]
    assert "already done" in train(*evaluated)[1]
    write_arrays(60, seed=1)
    code, text = train(*evaluated)
    assert code == 0 and "already done" not in text
    (second,) = set(Path("outputs/default").iterdir()) - {first}
    assert json.loads((second / "results.json").read_text())["config"]["dataset"]["train_images"] == 60
    # The first run is evaluated on its own images or not at all.
    refuses(f"evaluate {first} evaluate=geometry", "dataset paths.data", capfd)
    # A cell asks for as many images as the data set has, and by the recipe alone: its machine may have none of them.
    cell, runs = load([*SMALL, *evaluated]), finished(Path("outputs"))
    assert cell["dataset"]["train_images"] == 60000 and trained(runs, cell) == []
    counted = {**cell, "dataset": {**cell["dataset"], "train_images": 60}}
    assert [run.folder.name for run in trained(runs, counted)] == [second.name]
    Path("data").rename("elsewhere")
    assert "already done" in train(*evaluated)[1]


def test_the_hash_covers_names_sizes_both_ends_and_a_stride(tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    content = bytearray(3_000_000)
    small.write_bytes(b"abc")
    seen, whole = set[str](), set[str]()

    def flipped(place: int | None = None) -> tuple[bool, bool]:
        """Whether the hash, and that of whole files, are new ones with another bit at a place."""
        if place is not None:
            content[place] ^= 1
        large.write_bytes(content)
        before = len(seen), len(whole)
        seen.add(content_of([large, small], tmp_path, False))
        whole.add(content_of([large, small], tmp_path, True))
        return len(seen) > before[0], len(whole) > before[1]

    assert [flipped(), flipped(0), flipped(len(content) - 1)] == [(True, True)] * 3
    content.append(0)
    assert flipped() == (True, True)
    small.write_bytes(b"abd")
    assert flipped() == (True, True)
    found = [flipped(place) for place in range(1000, len(content), 50_000)]
    assert all(of_whole for _, of_whole in found) and sum(each for each, _ in found) > 30  # most of a file of 3 MB
    assert content_of([small, large], tmp_path, True) not in whole


# ---- weights to start from


def test_the_identity_of_init_is_the_weights_that_are_loaded(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    growing = ["optimizer.schedule=constant", "dataset.size=12", "dataset.share=0.2", "evaluate.watch=0"]
    assert train(*growing, "epochs=1")[0] == 0
    first = only_run()
    second = [*growing, "epochs=1", f"init={first}", "paths.outputs=second", "evaluate.baselines=[init]"]
    assert train(*second)[0] == 0
    former = only_run(Path("second"))
    assert "already done" in train(*second)[1]
    assert train(*growing, "epochs=2")[0] == 0  # the first run has gone on, under its own name
    code, text = train(*second)
    assert code == 0 and "already done" not in text and len(list(Path("second/default").iterdir())) == 2
    # The former run is not evaluated against weights that it did not begin with.
    refuses(f"evaluate {former} evaluate=geometry", f"init={first.absolute()}", capfd)
    loaded = load_run(former, read_config(former), CPU)
    assert loaded.initial is None and loaded.step > 0


def test_a_file_of_weights_that_was_replaced_is_another_start(
    trained: Path, train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = Path("weights.pt")
    encoder = load_run(trained, read_config(trained), CPU).method.encoder
    content = dict(encoder.get_submodule("backbone").state_dict())
    torch.save(content, weights)
    command = ["max_steps=1", f"init={weights}", "paths.outputs=second", "evaluate.baselines=[init]"]
    assert train(*command)[0] == 0
    run = only_run(Path("second"))
    torch.save({name: value + 1 for name, value in content.items()}, weights)
    refuses(f"evaluate {run} evaluate=geometry", f"init={weights.absolute()}", capfd)
    code, text = train(*command)
    assert code == 0 and "already done" not in text
    refuses("train 'init={path: weights.pt, weights: mine}'", "init.weights=mine init weights.pt", capfd)
