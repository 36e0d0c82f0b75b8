"""The features that a network makes of many images, as an array or as the files of a folder.

The folder has ``features.npy``, float32 [N, D]; ``images.csv``, with the place, the label and split of each row; for
the command a picture of neighbours; and ``embed.json``, with a hash of the network's weights and the files' names.
Only files that it names are ever replaced.

The features of all images are in memory, for a moment twice: those of ImageNet by a ResNet-50 have 10.5 GB.

Shapes: N images, n of a batch; D features.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ssl_bench import files
from ssl_bench.api import options as conf
from ssl_bench.api.arguments import tensor
from ssl_bench.api.reading import Named, folder_of, load
from ssl_bench.config import compose, schema
from ssl_bench.config.with_hydra import as_typed, quoted
from ssl_bench.data.batch import Reader
from ssl_bench.data.pixels import EvalView
from ssl_bench.data.source import Images, Joined, Source
from ssl_bench.errors import ConfigError, RunError, require, shown
from ssl_bench.evaluate.target import Target, frozen
from ssl_bench.hardware import check_devices, local_device, move
from ssl_bench.record.evaluations import digest
from ssl_bench.record.neighbours import write_picture
from ssl_bench.seeding import seed_everything
from ssl_bench.signals import stop_if_asked
from ssl_bench.training import build
from ssl_bench.training.finished import load_run, read_again, read_config
from ssl_bench.training.precision import Precision, set_matmul_options

FEATURES, RECORD = "features.npy", "embed.json"
NAMES = (FEATURES, "images.csv", "neighbours.png", RECORD)


def embed(
    network: nn.Module | Named, images: Any, *, out: str | os.PathLike[str] | None = None, **options: Any
) -> np.ndarray:
    """Compute the features of images, as ``ssl-bench embed``: with nothing random, in evaluation mode, in batches.

        features = ssl_bench.embed(network, "photos", size=224)                 # every image below a folder
        features = ssl_bench.embed("outputs/default/0123456789", array)         # the network of a run, uint8 images
        features = ssl_bench.embed(network, "cifar10", out="cifar10-features")  # a prepared data set, to a folder

    Args:
        network: [n, C, H, W] -> [n, D], on any device, which computes; or a run: its directory, its run_id below
            ``outputs``, or a row of :func:`ssl_bench.runs`, on the GPU if there is one.
        images: an option of conf/dataset, of which the training images come first and then the test images; a folder
            with images; or a tensor or an array, [N, C, H, W]: uint8 images, which are divided by 255 and
            normalised, or floating-point views as the network takes them, in float32. A memory-mapped array stays on
            the disk if it may be written (``mmap_mode="c"``).
        out: a folder for ``features.npy``, ``images.csv``, with a row for each of these features, and ``embed.json``.
            Files of an earlier call are replaced once all new ones are whole; other files stay as they are.
        options: keys of the data set, such as ``size``, ``mean``, ``std`` and ``resize``; of arrays ``mean`` and
            ``std``, one number for each channel. The view of a run's network is that of its evaluations.

    Returns:
        float32 [N, D].

    Raises:
        ConfigError: the images or the network cannot be used, or ``out`` has a file of such a name that no call wrote.
        RunError: a feature is not finite, an image cannot be decoded, or the run has no checkpoint.
    """
    source: Any = network if isinstance(network, nn.Module) else folder_of(network)
    if isinstance(images, str | os.PathLike):
        _, target, splits = opened(source, _dataset(images, options))
    else:
        conf.check_known(options, ["mean", "std"], "images of an array")
        images = tensor(images).cpu()
        node = read_config(source)["dataset"] if isinstance(source, Path) else {}
        in_bytes = images.dtype == torch.uint8 and node.get("dtype", "uint8") == "uint8"
        fits = images.ndim == 4 and len(images) > 0 and (in_bytes or images.is_floating_point())
        kinds = "a folder, a data set, or images [N, C, H, W]: uint8, if the training had such, or floating-point views"
        require(fits, "images", f"{images.dtype} {list(images.shape)}", kinds)
        if isinstance(source, Path):
            options = {key: node[key] for key in ("mean", "std")} | options
            source = load(source).to(local_device(0))
        view = EvalView(**options) if in_bytes else torch.as_tensor
        splits = {"images": Images([images], torch.full((len(images),), -1))}
        target = Target(source, *splits.values(), *splits.values(), num_classes=0, view=view, device="cpu", seed=0)
    return features(target, splits) if out is None else write(target, splits, files.given_path(out), "out")


def _dataset(images: str | os.PathLike[str], options: Mapping[str, Any]) -> list[str]:
    """Overrides that choose a data set: an option, or a folder."""
    name, given = str(images), dict(options)
    if name not in (names := conf.names("dataset")):
        path = files.given_path(images)
        require(path.is_dir(), "images", images, f"a folder, an array or one of {', '.join(names)}")
        name, given["root"] = "folder", str(path.absolute())
    texts = {key: quoted(value) if isinstance(value, str) else shown(value) for key, value in given.items()}
    return [f"dataset={name}", *(f"dataset.{key}={text}" for key, text in texts.items())]


def opened(source: nn.Module | Path | dict[str, Any], words: Sequence[str]) -> tuple[str, Target, dict[str, Source]]:
    """Open a network and images.

    Args:
        source: a network; the directory of a run; or a configuration, which also names the images.
        words: overrides ``dataset=OPTION`` with keys of it, whose view for a run is that of its evaluations; for a run
            also the new place of its own images without ``dataset``, and ``device``, ``precision``, ``paths.data``.

    Returns:
        The name of the images; the network and how its views are made; the images by their split.

    Raises:
        ConfigError: network or images are not there, do not fit each other, or an override cannot be used.
        RunError: the run has no checkpoint that can be read.
    """
    try:
        config: Any = source
        if isinstance(source, Path):
            others = any(word.startswith("dataset=") for word in words)
            on = [word for word in words if others and word.startswith(("dataset=", "dataset."))]
            inner = ", ".join(as_typed(word).removeprefix("dataset.").replace("=", ": ", 1) for word in on)
            words = [*(word for word in words if word not in on), "evaluate=[]", "evaluate.baselines=[]"]
            words.append(f"evaluate.on={{{inner}}}" if on else "evaluate.on=null")
            config = read_again(source, words, ["precision"])
        elif isinstance(source, nn.Module):  # which has a device and formats of its own
            schema.check(config := compose.load([*words, "framework=frozen", "evaluate=[]", "device=cpu"]))
        device = local_device(0, config["device"])
        loaded = load_run(source, config, device) if isinstance(source, Path) else None
        run = loaded.run if loaded else build.build(config)
        ((_, name, data),) = run.evaluated
    except ConfigError as error:  # other images have other keys on the command line
        raise ConfigError(str(error).replace("evaluate.on", "dataset")) from error
    require(data.has_images, "dataset", name, "one that has images")
    data.check()
    precision = Precision.of(config["precision"], device.type == "cuda")
    if not isinstance(source, nn.Module):
        check_devices(1, config["device"])
        set_matmul_options(config["tf32"])
        seed_everything(config["seed"])  # weights from nowhere are drawn
        method = loaded.method if loaded else build.method(run)
        source = move(method.encoder.get_submodule("backbone").to(precision.weights), device)
    target = build.target(run, source, next(iter(data.probes().values())), device, precision, data)
    name = name or str(config["choices"]["dataset"]).rpartition(":")[2]
    return name, target, {split: target.split(split) for split in ("train", "test")}


def features(target: Target, splits: Mapping[str, Source]) -> np.ndarray:
    """The features of the images of all splits, one after the other, float32 [N, D].

    Args:
        target: the network, views [n, C, H, W] -> features [n, D], and how views are made.

    Raises:
        InvalidValue: the network makes no such features.
        RunError: a feature is not finite, or an image cannot be decoded.
    """
    images, made = Joined([*splits.values()]), list[np.ndarray]()
    network: Any = target.network
    # Views get the device and the type of:
    like = next((weights for weights in network.parameters() if weights.is_floating_point()), torch.empty(0))
    for ids, read, _ in Reader(images, like.device).batches(torch.arange(len(images)).split(target.batch_size)):
        stop_if_asked()
        with frozen(network), torch.autocast(like.device.type, target.autocast, enabled=target.autocast is not None):
            rows = network(target.view(read).to(like)).float().cpu()
        require(rows.shape[:-1] == ids.shape, "network", list(rows.shape), f"one that makes features [{len(ids)}, D]")
        for i in ids.cpu()[~rows.isfinite().all(1)].tolist():
            raise RunError(f"features of image {images.path_of(i)} are not finite: give another network or precision")
        made.append(rows.numpy())
    return np.concatenate(made)


def write(target: Target, splits: Mapping[str, Source], out: Path, key: str, pictures: bool = False) -> np.ndarray:
    """Write the files of a folder: first all of them in a temporary folder, from which they are moved.

    Args:
        key: names the folder in a refusal.
        pictures: draw ``neighbours.png`` as well, and print what it shows.

    Returns:
        As :func:`features`.

    Raises:
        InvalidValue: the folder has a file of such a name that its ``embed.json`` does not name.
        RunError: as :func:`features`; the files in the folder are then as they were.
    """
    import pandas  # heavy: only where it is used

    _require_own(out, key)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".embed.", dir=out, ignore_cleanup_errors=True) as temporary:
        images, folder, made = Joined([*splits.values()]), Path(temporary), features(target, splits)
        files.write(folder / FEATURES, lambda file: np.save(file, made))
        classes = (label.nonzero() if label.ndim else [label] for label in images.labels)
        labels = [" ".join(target.names_of({int(c) for c in of_image if c >= 0})) for of_image in classes]
        table = {"image": [images.path_of(i) for i in range(len(labels))], "label": labels}
        table["split"] = [split for split, part in splits.items() for _ in range(len(part))]
        files.write_text(folder / "images.csv", pandas.DataFrame(table, dtype=object).to_csv(index=False))
        if pictures:
            print(write_picture(folder, torch.from_numpy(made), images, labels.__getitem__, target.seed), flush=True)
        names = [*sorted(os.listdir(folder)), RECORD]
        files.write_json(folder / RECORD, {"network": [digest(target.network)], "files": names})
        stop_if_asked()
        _require_own(out, key)
        files.write_json(out / RECORD, {"files": NAMES})  # should this call be killed before the last file
        for name in NAMES:  # a picture that this call has not drawn would show other features
            os.replace(folder / name, out / name) if (folder / name).exists() else files.remove(out / name)
    return made


def _require_own(out: Path, key: str) -> None:
    """Refuse a folder with a file of these names that no earlier call has written; ``key`` names the folder."""
    written = (files.read_json(out / RECORD, dict[str, list[str]], named=False) or {}).get("files", ())
    foreign = [name for name in NAMES if name not in written and os.path.lexists(out / name)]
    require(not foreign, key, out, f"another folder: {', '.join(foreign)} in this one was not written by this command")
