"""The features that a network makes of many images, as an array or as the files of a folder.

The folder has ``features.npy``, float32 [N, D]; ``images.csv``, with the place, the label and the split of each row;
for the command pictures of them; and ``embed.json``, which says of which network and images they are, and names the
files. Only files that it names are ever replaced.

Shapes: N images, n of a batch; D features.
"""

import codecs
import csv
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.api import options as conf
from ssl_bench.api.reading import folder_of, load
from ssl_bench.config import compose, schema
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import hashed
from ssl_bench.config.typed import as_typed, quoted
from ssl_bench.data.evalview import EvalView
from ssl_bench.data.photos import Photos
from ssl_bench.data.reader import Reader
from ssl_bench.data.source import Joined, Source
from ssl_bench.disk import temporary
from ssl_bench.disk.patience import make_folder
from ssl_bench.errors import ConfigError, RunError, require, shown
from ssl_bench.evaluate.target import frozen
from ssl_bench.hardware import local_device, move
from ssl_bench.record.baselines import digest
from ssl_bench.record.feature_plots import write_pictures
from ssl_bench.signals import stop_if_asked
from ssl_bench.training.finished import load_run, read_again, read_config
from ssl_bench.training.parts import Parts
from ssl_bench.training.precision import Precision

BATCH = 256
FEATURES, RECORD = "features.npy", "embed.json"
NAMES = (FEATURES, "images.csv", "neighbours.png", "map.png", RECORD)
SPLITS = ("train", "test")

Run = str | os.PathLike[str] | Mapping[str, Any]


def embed(
    network: nn.Module | Run, images: Any, *, out: str | os.PathLike[str] | None = None, **options: Any
) -> np.ndarray:
    """Compute the features of images, as ``ssl-bench embed``: with nothing random, in evaluation mode, in batches.

        features = ssl_bench.embed(network, "photos", size=224)                 # every image below a folder
        features = ssl_bench.embed("outputs/default/0123456789", array)         # the network of a run, uint8 images
        features = ssl_bench.embed(network, "cifar10", out="cifar10-features")  # a prepared data set, to a folder

    Args:
        network: [n, C, H, W] -> [n, D], on any device, which computes; or a run: its directory, its run_id below
            ``outputs``, or a row of :func:`ssl_bench.runs`, on the GPU if there is one.
        images: an option of conf/dataset, of which the training images come first and then the test images; a folder
            with images; or a tensor or an array, also a memory-mapped one, [N, C, H, W]: uint8 images, which are
            divided by 255 and normalised, or floating-point views as the network takes them.
        out: a folder for ``features.npy``, ``images.csv``, with a row for each of these features, and ``embed.json``.
            Files of an earlier call are replaced once all new ones are whole; other files stay as they are.
        options: keys of the data set, such as ``size``, ``mean``, ``std`` and ``resize``; of arrays ``mean`` and
            ``std``, one number for each channel. The view of a run's network is that of its evaluations.

    Returns:
        float32 [N, D]; with ``out`` mapped from the file into memory.

    Raises:
        ConfigError: the images or the network cannot be used, or ``out`` has a file of such a name that no call wrote.
        RunError: a feature is not finite, an image cannot be decoded, or the run has no checkpoint.
    """
    embedding = _opened(network, images, options)
    if out is None:
        return np.concatenate(list(embedding.features()))
    folder = files.given_path(out)
    embedding.write(folder, "out")
    mapped: np.ndarray = np.load(folder / FEATURES, mmap_mode="r")
    return mapped


def _opened(network: nn.Module | Run, images: Any, options: Mapping[str, Any]) -> "Embedding":
    if isinstance(images, str | os.PathLike):
        words = _dataset(images, options)
        if not isinstance(network, nn.Module):
            return of_parts(of_run(folder_of(network), words), SPLITS)
        config = find_prepared(compose.load([*words, "framework=frozen", "evaluate=[]"]))
        schema.check(config)
        return of_parts(Parts(config), SPLITS, network)
    array = images.cpu().numpy() if isinstance(images, Tensor) else np.asarray(images)
    kind = f"{array.dtype} {list(array.shape)}"
    fits = array.ndim == 4 and len(array) > 0 and (array.dtype == np.uint8 or array.dtype.kind == "f")
    require(fits, "images", kind, "a folder, a data set, or uint8 or floating-point images [N, C, H, W]")
    conf.check_known(options, ["mean", "std"], "images of an array")
    if not isinstance(network, nn.Module):
        node = read_config(folder_of(network))["dataset"]
        options = {key: node[key] for key in ("mean", "std")} | dict(options)
        remedy = f"floating-point views: the run was trained on images of {node.get('dtype')}"
        require(array.dtype != np.uint8 or node.get("dtype", "uint8") == "uint8", "images", "an array of uint8", remedy)
        network = load(network).to(local_device(0))
    content = [kind, hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()]
    return Embedding(network, Joined([_Array(array)]), dict(options) if array.dtype == np.uint8 else None, content)


class _Array(Source):
    """Images [N, C, H, W] without labels."""

    def __init__(self, images: np.ndarray) -> None:
        self.images, self.labels = images, torch.full((len(images),), -1)

    def take(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.images[ids.numpy()])


def _dataset(images: str | os.PathLike[str], options: Mapping[str, Any]) -> list[str]:
    """Overrides that choose a data set: an option, or a folder."""
    name, given = str(images), dict(options)
    if name not in (names := conf.names("dataset")):
        path = files.given_path(images)
        require(path.is_dir(), "images", images, f"a folder, an array or one of {', '.join(names)}")
        name, given["root"] = "folder", str(path.absolute())
    texts = {key: quoted(value) if isinstance(value, str) else shown(value) for key, value in given.items()}
    return [f"dataset={name}", *(f"dataset.{key}={text}" for key, text in texts.items())]


class _Record(TypedDict):
    files: list[str]


@dataclass(frozen=True)
class Embedding:
    """A network and N images.

    Args:
        network: views [n, C, H, W] -> features [n, D], or a mapping with these as ``backbone``.
        images: of all splits, one after the other.
        view: arguments of ``EvalView``; None: the images are views.
        content: what identifies the images, as JSON has it.
        splits: the names of the splits.
        autocast: type for mixed precision; None: that of the network.
        class_names: in the order of the labels; empty: they are numbers.
        seed: draws the images of the pictures.
    """

    network: nn.Module
    images: Joined
    view: Mapping[str, Any] | None
    content: Any
    splits: Sequence[str] = ("images",)
    autocast: torch.dtype | None = None
    class_names: Sequence[str] = ()
    seed: int = 0

    def features(self) -> Iterator[Tensor]:
        """Yield the features of one batch after the other: each float32 [n, D] on the CPU.

        Raises:
            InvalidValue: the network makes no such features.
            RunError: a feature is not finite, or an image cannot be decoded.
        """
        device, dtype = self.formats()
        make_views: Any = Tensor.to if self.view is None else EvalView(**self.view)
        for ids, read, _ in Reader(self.images, device).batches(torch.arange(len(self.images)).split(BATCH)):
            stop_if_asked()
            with frozen(self.network), torch.autocast(device.type, self.autocast, enabled=self.autocast is not None):
                made = self.network(make_views(read, dtype))
            made = (made["backbone"] if isinstance(made, dict) else made).float().cpu()
            fits = made.ndim == 2 and len(made) == len(ids)
            require(fits, "network", list(made.shape), f"one that makes features [{len(ids)}, D] of {len(ids)} images")
            for part in self.images.parts:
                if isinstance(part, Photos) and part.damaged:  # another image was read in its place
                    i, why = next(iter(part.damaged.items()))
                    raise RunError(f"{part.name(i)} cannot be decoded ({why}): replace or remove it")
            if len(bad := ids.cpu()[~made.isfinite().all(1)]):
                place = self.images.place(int(bad[0]))
                raise RunError(f"the features of {place} are not finite: give another network or precision")
            yield made

    def formats(self) -> tuple[torch.device, torch.dtype]:
        """Where the network computes, and the type of its views."""
        tensor = next(chain(self.network.parameters(), self.network.buffers()), torch.empty(0))
        return tensor.device, tensor.dtype if tensor.is_floating_point() else torch.float32

    def write(self, out: Path, key: str, pictures: bool = False) -> None:
        """Write the files of a folder: first all of them under a temporary name, which then get their names.

        Args:
            key: names the folder in a refusal.
            pictures: draw ``neighbours.png`` and ``map.png`` as well, and print what they show.

        Raises:
            InvalidValue: the folder has a file of such a name that its ``embed.json`` does not name.
            RunError: as :meth:`features`; the files in the folder are then as they were.
        """
        _require_own(out, key)
        make_folder(out)
        fresh = temporary.beside(out / "embed")
        fresh.mkdir()
        try:
            files.write(fresh / FEATURES, self._write_features)
            files.write(fresh / "images.csv", self._write_images)
            if pictures:
                for sentence in write_pictures(fresh / FEATURES, self.images, self.label, self.seed):
                    print(sentence, flush=True)
            width = np.load(fresh / FEATURES, mmap_mode="r").shape[1]
            written = [name for name in NAMES if (fresh / name).exists()]
            device, dtype = self.formats()
            counts = dict(zip(self.splits, map(len, self.images.parts), strict=True))
            formats = f"{self.autocast or dtype} on {device.type}"
            record = {"network": [digest(self.network), str(self.network)], "images": self.content, "view": self.view}
            record |= {"precision": formats, "splits": counts, "width": width, "files": [*written, RECORD]}
            stop_if_asked()
            _require_own(out, key)
            files.write_json(out / RECORD, {"files": NAMES})  # should this call be killed before the last line
            for name in NAMES[:-1]:  # a picture that this call has not drawn would show other features
                os.replace(fresh / name, out / name) if name in written else files.remove(out / name)
            files.write_json(out / RECORD, record)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _write_features(self, file: BinaryIO) -> None:
        for number, made in enumerate(self.features()):
            if number == 0:
                header = {"descr": "<f4", "fortran_order": False, "shape": (len(self.images), made.shape[1])}
                np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
            file.write(made.numpy().astype("<f4").tobytes())

    def _write_images(self, file: BinaryIO) -> None:
        table = csv.writer(codecs.getwriter("utf-8")(file, "surrogateescape"), lineterminator="\n")
        table.writerow(["image", "label", "split"])
        splits = (split for split, part in zip(self.splits, self.images.parts, strict=True) for _ in range(len(part)))
        table.writerows([self.images.place(i), self.label(i), split] for i, split in enumerate(splits))

    def label(self, i: int) -> str:
        """The label of image i: the name of its class, or its number, or those of several; empty: it has none."""
        of_image = self.images.labels[i]
        classes = [int(of_image)] if of_image.ndim == 0 else of_image.nonzero().flatten().tolist()
        return " ".join(str(self.class_names[c] if self.class_names else c) for c in classes if c >= 0)


def _require_own(out: Path, key: str) -> None:
    """Refuse a folder with a file of these names that no earlier call has written; ``key`` names the folder."""
    record = files.read_json(out / RECORD, _Record, named=False) or {"files": []}
    for name in NAMES:
        fits = name in record["files"] or not os.path.lexists(out / name)
        require(fits, key, out, f"another folder: {name} in this one is not named by an {RECORD} of this command")


def of_run(run: Path, overrides: Sequence[str]) -> Parts:
    """The parts with which the network of a run makes features: of the run's own images, or of others.

    Args:
        overrides: ``dataset=OPTION`` with keys of it for other images, whose view is that of the run's evaluations; or
            the new place of the run's own ones; ``device``, ``precision``, ``paths.data``.

    Raises:
        ConfigError: there is no run, or an override cannot be used.
        RunError: the run has no checkpoint that can be read.
    """
    others = any(word.startswith("dataset=") for word in overrides)
    on = [word for word in overrides if others and word.startswith(("dataset=", "dataset."))]
    inner = ", ".join(as_typed(word).removeprefix("dataset.").replace("=", ": ", 1) for word in on)
    words = [*(word for word in overrides if word not in on), "evaluate=[]", "evaluate.baselines=[]"]
    words.append(f"evaluate.on={{{inner}}}" if on else "evaluate.on=null")
    try:
        config = read_again(run, words, ["precision"]) | {"init": None}  # the checkpoint has all weights
        parts = load_run(run, config, local_device(0, config["device"])).parts
        _ = parts.evaluated
    except ConfigError as error:  # other images have other keys on the command line
        raise ConfigError(str(error).replace("evaluate.on", "dataset")) from error
    return parts


def of_parts(parts: Parts, splits: Sequence[str], given: nn.Module | None = None) -> Embedding:
    """The network of a configuration, or a given one, and the images that ``evaluate.on`` or else ``dataset`` names.

    Raises:
        ConfigError: the images or the network are not there, or do not fit each other.
    """
    config, autocast, ((on, name, data),) = parts.config, None, parts.evaluated
    require(data.has_images, "dataset", name, "one that has images")
    data.check()
    if given is None:
        device = local_device(0, config["device"])
        precision = Precision.of(config["precision"], device.type == "cuda")
        given, autocast = move(parts.method.encoder.to(precision.weights), device), precision.autocast
    probe = next(iter(data.probes().values()))
    images = Joined([getattr(probe, split) for split in splits])
    view = {key: config["dataset"][key] for key in ("mean", "std")} | data.eval_view
    content = hashed({"dataset": on or config["dataset"]})["dataset"]
    return Embedding(given, images, view, content, splits, autocast, data.class_names(), config["seed"])
