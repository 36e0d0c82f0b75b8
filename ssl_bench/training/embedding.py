"""A network and the images that it makes features of."""

import contextlib
import csv
import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.config import schema
from ssl_bench.config.evaluated_again import evaluated_again
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import datasets_of, hashed
from ssl_bench.config.typed import as_typed
from ssl_bench.data.reader import Reader
from ssl_bench.data.source import Joined
from ssl_bench.errors import ConfigError, InvalidValue, in_one_line, require
from ssl_bench.evaluate.embedding import BATCH, FEATURES, Forward, embedded
from ssl_bench.evaluate.target import SplitName
from ssl_bench.record.baselines import digest
from ssl_bench.seeding import seed_everything
from ssl_bench.training.finished import load_run, read_config
from ssl_bench.training.parts import Parts
from ssl_bench.training.precision import Precision

SPLITS: tuple[SplitName, ...] = ("train", "test")
RECORD = "embed.json"


@dataclass(frozen=True)
class Embedding:
    """A network and N images.

    Args:
        images: of all splits, one after the other.
        splits: the names of the splits.
        network: not yet on ``device``, if it is a run's or that of a configuration.
        forward: a batch on ``device`` -> its features [n, D].
        width: D.
        identity: what the features depend on, as JSON has it.
        class_names: in the order of the labels; empty: they are numbers.
    """

    images: Joined
    splits: Sequence[str]
    network: nn.Module
    forward: Forward
    device: torch.device
    width: int
    identity: dict[str, Any]
    class_names: Sequence[str] = ()

    def features(self, which: Sequence[int]) -> Iterator[Tensor]:
        """Yield the features of some batches, as :func:`ssl_bench.evaluate.embedding.embedded`."""
        return embedded(self.images, self.forward, self.device, which)

    def record(self) -> dict[str, Any]:
        """The content of ``embed.json``, by which a later call knows whether the features in a folder are these."""
        counts = dict(zip(self.splits, map(len, self.images.parts), strict=True))
        numbers = {"splits": counts, "width": self.width, "batch": BATCH}
        record: dict[str, Any] = json.loads(json.dumps(self.identity | numbers))
        return record

    def require_folder(self, folder: Path, key: str) -> None:
        """Refuse a folder with features of another network or of other images; ``key`` names it in the sentence.

        Raises:
            InvalidValue: saying what differs.
        """
        wanted, there = self.record(), files.read_json(folder / RECORD, dict)
        if there is not None or (folder / FEATURES).exists():
            differing = [name for name in wanted if wanted[name] != (there or {}).get(name)]
            remedy = f"another folder: the features in this one have other {', '.join(differing)} ({RECORD})"
            require(not differing, key, folder, remedy)

    def label(self, i: int) -> str:
        """The label of image i: the name of its class, or its number, or those of several; empty: it has none."""
        of_image = self.images.labels[i]
        classes = [int(of_image)] if of_image.ndim == 0 else of_image.nonzero().flatten().tolist()
        return " ".join(str(self.class_names[c] if self.class_names else c) for c in classes if c >= 0)

    def write_images(self, path: Path) -> None:
        """Write a row for each row of the features: where the image is, its label and its split."""

        def fill(file: BinaryIO) -> None:
            text, numbers = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline=""), itertools.count()
            table = csv.writer(text, lineterminator="\n")
            table.writerow(["image", "label", "split"])
            for split, part in zip(self.splits, self.images.parts, strict=True):
                table.writerows([part.place(i), self.label(next(numbers)), split] for i in range(len(part)))
            text.flush()
            text.detach()

        files.write(path, fill)


def open_embedding(
    config: Mapping[str, Any],
    run: Path | None,
    splits: Sequence[SplitName],
    device: torch.device,
    given: nn.Module | None = None,
) -> Embedding:
    """The network of a run, or of a configuration, and the images that ``evaluate.on`` or else ``dataset`` names.

    Args:
        run: the directory of the run; None: the network is not trained.
        device: whose number formats are used.
        given: a network in place of that of the configuration, [n, C, h, w] -> ``backbone`` [n, D], on ``device``.

    Raises:
        ConfigError: the images or the network are not there, or do not fit each other.
        RunError: the run has no checkpoint that can be read.
    """
    precision = Precision.of(config["precision"], device.type == "cuda")
    if run is not None:
        parts = load_run(run, dict(config), device).parts
    else:
        parts = Parts(dict(config))
        if given is None:
            seed_everything(config["seed"])
    network = given or parts.method.encoder.to(precision.weights)
    with _images_of_the_command():
        ((on, name, data),) = parts.evaluated
    require(data.has_images, "dataset", name, "one that has images")
    data.check()
    target = parts.target(network, next(iter(data.probes().values())), device, precision, data)
    backbone: Any = network.get_submodule("backbone")
    view = {key: config["dataset"][key] for key in ("mean", "std")} | {"size": data.size, **data.eval_view}
    tf32 = ", TF32" if device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32 else ""
    identity = {
        "network": [digest(backbone), config["backbone"] if given is None else str(backbone)],
        "images": hashed({"dataset": on or config["dataset"]})["dataset"],
        "view": view,
        "precision": f"{precision.name} on {device.type}{tf32}",
    }

    def forward(images: Any) -> Tensor:
        return target.embed(target.view(images))["backbone"]

    images = Joined([target.split(split) for split in splits])
    width = backbone.num_features if given is None else width_of(backbone, images, forward, device)
    return Embedding(images, splits, network, forward, device, width, identity, data.class_names())


def width_of(network: nn.Module, images: Joined, forward: Forward, device: torch.device) -> int:
    """The number of features that a network makes of the first image. Raises InvalidValue if it cannot take it."""
    first = Reader(images, device).take(torch.tensor([0])).images
    try:
        return forward(first).shape[1]
    except ConfigError:
        raise
    except Exception as error:  # networks have no error class for images of a wrong size
        remedy = f"one that takes these images, such as {list(first[0].shape)}: {in_one_line(error)}"
        raise InvalidValue("network", type(network).__name__, remedy) from error


def of_run(run: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration with which the network of a run makes features: of the run's own images, or of others.

    Args:
        overrides: ``dataset=OPTION`` with keys of it for other images, whose view is that of the run's evaluations; or
            the new place of the run's own ones; ``device``, ``devices``, ``precision``, ``paths.data``.

    Raises:
        ConfigError: there is no run, or an override cannot be used.
    """
    config = read_config(run)
    others = [word for word in overrides if word.startswith(("dataset=", "dataset."))]
    keys = ["device", "devices", "precision", "paths.data"]
    if not any(word.startswith("dataset=") for word in others):
        keys += [f"dataset.{key}" for key in ("root", "path") if key in config["dataset"]]
        others = []
    words = [word for word in overrides if word not in others]
    for word in words:
        if word.partition("=")[0] not in keys:
            raise ConfigError(f"{word}: for a run set only dataset=OPTION with its keys, and {', '.join(keys)}")
    entries = (as_typed(word).partition("=") for word in others)
    inner = ", ".join(f"{key.removeprefix('dataset.')}: {value}" for key, _, value in entries)
    words += ["evaluate=[]", "evaluate.baselines=[]", f"evaluate.on={{{inner}}}" if inner else "evaluate.on=null"]
    with _images_of_the_command():
        changed = evaluated_again(config, words)
    config |= changed | {"init": None, "graph": False}  # the checkpoint has all weights
    schema.check(config)
    return find_prepared(config, training=not inner)


@contextlib.contextmanager
def _images_of_the_command() -> Iterator[None]:
    """Say a refusal of ``evaluate.on``, as which a run takes other images, with the key that they were given by."""
    try:
        yield
    except ConfigError as error:
        if "evaluate.on" not in str(error):
            raise
        raise ConfigError(str(error).replace("evaluate.on", "dataset")) from error


def name_of_images(config: Mapping[str, Any]) -> str:
    """The name of the dataset, or of the folder, that features are made of."""
    (on,) = datasets_of(config["evaluate"])
    return str(on["dataset"] if on else config["choices"]["dataset"]).rpartition(":")[2]
