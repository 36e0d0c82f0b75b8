"""Makes the files that rows of refusals.yaml need in the working directory; their key ``given`` names a function."""

from pathlib import Path
from typing import Any

from tests.data import photos as made
from tests.data.test_folder import imagenet as imagenet_in
from tests.results import folders


def photos() -> None:
    """Folders of photos: without classes, with other classes to test, with splits in classes, empty."""
    made.photos(Path("flat"), "")
    made.photos(Path("odd"), "train/a", "train/b", "val/a", "val/c", count=2)
    made.photos(Path("inside"), *(f"{name}/{split}" for name in ("cat", "dog") for split in ("train", "test")), count=2)
    made.photos(Path("linked"), "train/a", "train/b")
    Path("linked/val").symlink_to("train")
    Path("empty").mkdir()


def imagenet() -> None:
    imagenet_in(Path("data"), 2, 1)


def arrays() -> None:
    made.arrays_in(Path("bytes"))
    made.arrays_in(Path("floats"), dtype="float32")


def runs() -> None:
    """Three losses, one of them with other numbers of negatives, and two seeds of each."""
    for loss, k in (("dcl", 4), ("infonce", 4), ("infonce", 32), ("infonce", 256)):
        for seed in range(2):
            _run(loss, 32, k, seed, cosines="dense" if seed else "auto")


def seeds() -> None:
    for seed in range(2):
        _run("dcl", 32, 4, seed)


def together() -> None:
    """Two losses, each with a batch size of its own."""
    for seed in range(2):
        _run("dcl", 32, 4, seed)
        _run("infonce", 128, 4, seed)


def equal() -> None:
    """Two losses with the same accuracy."""
    for loss in ("dcl", "infonce"):
        for seed in range(2):
            _run(loss, 32, 4, seed, accuracy=1.0)


def _run(loss: str, size: int, k: int, seed: int, accuracy: float | None = None, **values: str) -> None:
    settings: dict[str, Any] = {"loss": loss, "batch_size": size, "negatives__k": k, "seed": seed, **values}
    folders.run("g/", accuracy or (size + k + seed) / 1000, **settings)
