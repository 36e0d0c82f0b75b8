"""``ssl-bench prepare``: arrays equal torchvision's data, and refusals come with their exit codes."""

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets

from ssl_bench.commands.prepare import main
from tests.door.door import refuses

Split = tuple[np.ndarray, np.ndarray]  # uint8 [N, H, W, C], int64 [N]


def random_images(count: int, size: int, channels: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


def write_mnist(folder: Path, name: str = "MNIST") -> dict[str, Split]:
    """MNIST's idx files, unpacked as torchvision keeps them; those of FashionMNIST differ in the folder only."""
    raw, splits = folder / name / "raw", {}
    raw.mkdir(parents=True)
    for split, stem, count in (("train", "train", 12), ("test", "t10k", 5)):
        images, labels = splits[split] = random_images(count, 28, 1), np.arange(count) % 10
        for kind, array in (("images-idx3", images[..., 0]), ("labels-idx1", labels)):
            header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (raw / f"{stem}-{kind}-ubyte").write_bytes(header + array.astype(np.uint8).tobytes())
    return splits


def write_cifar10(folder: Path) -> dict[str, Split]:
    """CIFAR-10's pickled batches."""
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    train, test = ((random_images(count, 32, 3), np.arange(count) % 10) for count in (10, 4))
    files = {f"data_batch_{i + 1}": (train[0][2 * i : 2 * i + 2], train[1][2 * i : 2 * i + 2]) for i in range(5)}
    for name, (images, labels) in (files | {"test_batch": test}).items():
        content = {"data": images.transpose(0, 3, 1, 2).reshape(len(images), -1), "labels": labels.tolist()}
        (batches / name).write_bytes(pickle.dumps(content))
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))
    return {"train": train, "test": test}


def write_stl10(folder: Path) -> dict[str, Split]:
    """STL-10's binary files: images column by column, labels from 1."""
    binary, splits = folder / "stl10_binary", {}
    binary.mkdir(parents=True)
    for split, count in (("train", 6), ("test", 4), ("unlabeled", 9)):
        images, labels = splits[split] = random_images(count, 96, 3), np.arange(count) % 10
        (binary / f"{split}_X.bin").write_bytes(images.transpose(0, 3, 2, 1).tobytes())
        if split == "unlabeled":
            labels[:] = -1
        else:
            (binary / f"{split}_y.bin").write_bytes((labels + 1).astype(np.uint8).tobytes())
    return splits


@pytest.mark.parametrize(
    ("name", "write", "images"),
    [("mnist", write_mnist, 12), ("cifar10", write_cifar10, 10), ("stl10", write_stl10, 15)],
)
def test_arrays_equal_the_files_in_torchvisions_format(
    name: str,
    write: Callable[[Path], dict[str, Split]],
    images: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for module in (torchvision.datasets.cifar, torchvision.datasets.stl10):
        monkeypatch.setattr(module, "check_integrity", lambda *_: True)  # the files are not the published ones
    splits = write(Path("source"))
    assert main([f"dataset={name}", "paths.data=data", "--source", "source"]) == 0
    assert capfd.readouterr().out.startswith(f"data/{name} is ready: {images} ")
    for split, expected in splits.items():
        for kind, array in zip(("images", "labels"), expected, strict=True):
            written = np.load(f"data/{name}/{split}_{kind}.npy")
            assert written.dtype == array.dtype and np.array_equal(written, array), (split, kind)
    before = Path(f"data/{name}/train_images.npy").stat().st_mtime_ns
    assert main([f"dataset={name}", "paths.data=data"]) == 0  # complete arrays are kept
    assert f"is ready: {images} images" in capfd.readouterr().out
    assert Path(f"data/{name}/train_images.npy").stat().st_mtime_ns == before
    Path(f"data/{name}/test_labels.npy").unlink()
    refuses(f"prepare dataset={name} paths.data=data --source source", f"data/{name}/test_images.npy", capfd)


def test_a_dataset_without_files_needs_no_preparation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset=scattered_digits"]) == 0
    out, err = capsys.readouterr()
    assert "dataset=scattered_digits" in out and "1347" in out and err == ""


@pytest.mark.parametrize("length", [0, 10])
def test_files_that_are_cut_are_refused(length: int, capfd: pytest.CaptureFixture[str]) -> None:
    """torchvision looks only at the names of MNIST's files, also at those of a download that was cut."""
    write_mnist(Path("data/torchvision"))
    for path in Path("data/torchvision/MNIST/raw").iterdir():
        path.write_bytes(path.read_bytes()[:length])
    for source in ("", "--source data/torchvision"):
        refuses(f"prepare dataset=mnist paths.data=data {source}", "data/torchvision MNIST", capfd)


def test_a_failed_download_is_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", fail)
    assert main(["dataset=mnist", "paths.data=data"]) == 1
    assert "Error downloading train-images-idx3-ubyte.gz" in capsys.readouterr().err
