"""Features of any images, by a network of one's own or that of a run."""

import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssl_bench import files
from ssl_bench.api import options as conf
from ssl_bench.api.reading import folder_of, load
from ssl_bench.config import compose, schema
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.typed import quoted
from ssl_bench.data.evalview import EvalView
from ssl_bench.data.source import Joined, Source
from ssl_bench.errors import require, shown
from ssl_bench.evaluate.embedding import BATCH, FEATURES, FeatureFile, batches
from ssl_bench.evaluate.target import frozen
from ssl_bench.hardware import local_device, move
from ssl_bench.launch.embed import write
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.networks.trained_on import BOUNDED, images_of
from ssl_bench.record.baselines import digest
from ssl_bench.training.embedding import SPLITS, Embedding, of_run, open_embedding, width_of
from ssl_bench.training.finished import read_config

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
            What is there is not computed again; a call that was stopped goes on.
        options: keys of the data set, such as ``size``, ``mean``, ``std`` and ``resize``; of arrays ``mean`` and
            ``std``, one number for each channel. The view of a run's network is that of its evaluations.

    Returns:
        float32 [N, D]; with ``out`` mapped from the file into memory.

    Raises:
        ConfigError: the images or the network cannot be used, or ``out`` has other features.
        RunError: a feature is not finite, an image cannot be decoded, or the run has no checkpoint.
    """
    embedding = _opened(network, images, options)
    which = range(batches(len(embedding.images)))
    if out is None:
        made = np.empty((len(embedding.images), embedding.width), np.float32)
        for batch, features in zip(which, embedding.features(which), strict=True):
            made[batch * BATCH :][: len(features)] = features.numpy()
        return made

    def fill(file: FeatureFile, missing: Sequence[int]) -> Outcome:
        for batch, features in zip(missing, embedding.features(missing), strict=True):
            file.write(batch, features)
        return Outcome(State.DONE)

    folder = files.given_path(out)
    write(embedding, folder, "out", fill)
    mapped: np.ndarray = np.load(folder / FEATURES, mmap_mode="r")
    return mapped


def _opened(network: nn.Module | Run, images: Any, options: Mapping[str, Any]) -> Embedding:
    is_array = not isinstance(images, str | os.PathLike)
    if not isinstance(network, nn.Module):
        run, device = folder_of(network), local_device(0)
        if is_array:
            trained = images_of(read_config(run)["dataset"])
            unlike = "uint8" in str(getattr(images, "dtype", "")) and trained["image_dtype"] != BOUNDED
            remedy = f"floating-point views: the run was trained on images of {trained['image_dtype']}"
            require(not unlike, "images", "an array of uint8", remedy)
            view = {"mean": trained["mean"], "std": trained["std"]}
            return _of_array(move(load(run), device), images, view | dict(options))
        embedding = open_embedding(of_run(run, _dataset(images, options)), run, SPLITS, device)
        move(embedding.network, device)
        return embedding
    if is_array:
        return _of_array(network, images, options)
    tensor = _some_tensor(network)
    precision = "fp64" if tensor.dtype == torch.float64 else "fp32"
    words = [*_dataset(images, options), "framework=frozen", "evaluate=[]", f"precision={precision}"]
    config = find_prepared(compose.load(words))
    schema.check(config)
    return open_embedding(config, None, SPLITS, tensor.device, _Alone(network))


def _some_tensor(network: nn.Module) -> Tensor:
    """A tensor of a network, whose device and type are those of its images."""
    return next(itertools.chain(network.parameters(), network.buffers()), torch.empty(0))


def _dataset(images: str | os.PathLike[str], options: Mapping[str, Any]) -> list[str]:
    """Overrides that choose a data set: an option, or a folder."""
    given, path = dict(options), files.given_path(images)
    name = str(images) if str(images) in conf.names("dataset") else "folder"
    if name != str(images):
        remedy = f"a folder, an array or one of {', '.join(conf.names('dataset'))}"
        require(path.is_dir(), "images", images, remedy)
        given["root"] = str(path.absolute())
    texts = {key: quoted(value) if isinstance(value, str) else shown(value) for key, value in given.items()}
    return [f"dataset={name}", *(f"dataset.{key}={text}" for key, text in texts.items())]


class _Alone(nn.Module):
    """A network as an encoder, whose features are named."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.backbone(x)
        shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        fits = isinstance(features, Tensor) and features.ndim == 2 and len(features) == len(x)
        require(fits, "network", shape, f"one that makes features [{len(x)}, D] of {len(x)} images")
        return {"backbone": features}


class _Array(Source):
    """Images [N, C, H, W] without labels."""

    def __init__(self, images: Any) -> None:
        self.images, self.labels = images, torch.full((len(images),), -1)

    def take(self, ids: Tensor) -> Tensor:
        if isinstance(self.images, Tensor):
            return self.images[ids.to(self.images.device)].cpu()
        return torch.from_numpy(np.array(self.images[ids.numpy()]))


def _of_array(network: nn.Module, images: Any, options: Mapping[str, Any]) -> Embedding:
    kind = getattr(images, "dtype", type(images).__name__)
    fits = getattr(images, "ndim", 0) == 4 and len(images) > 0 and ("float" in str(kind) or "uint8" in str(kind))
    shape = f"{kind} {list(getattr(images, 'shape', ()))}"
    require(fits, "images", shape, "a folder, a data set, or uint8 or floating-point images [N, C, H, W]")
    conf.check_known(options, ["mean", "std"], "images of an array")
    view = EvalView(**options) if "uint8" in str(kind) else None
    encoder, images = _Alone(network), Joined([_Array(images)])
    tensor = _some_tensor(network)
    floating = tensor.dtype if tensor.is_floating_point() else torch.float32

    def forward(batch: Any) -> Tensor:
        with frozen(encoder):
            return encoder(view(batch, floating) if view else batch.to(floating))["backbone"]

    content = hashlib.sha256()
    for ids in torch.arange(len(images)).split(BATCH):
        content.update(images.take(ids).contiguous().numpy().tobytes())
    identity = {
        "network": [digest(network), str(network)],
        "images": [shape, content.hexdigest()],
        "view": dict(options),
        "precision": f"{floating} on {tensor.device.type}",
    }
    width = width_of(network, images, forward, tensor.device)
    return Embedding(images, ["images"], encoder, forward, tensor.device, width, identity)
