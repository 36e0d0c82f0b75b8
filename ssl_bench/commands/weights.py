"""``--weights FILE`` of evaluate and embed: a network that was trained elsewhere, as a run of zero epochs.

FILE is a file of weights, a folder with such a file, ``timm:NAME``, ``timm:FOLDER`` (written by timm), or ``random``.
The run stores the path and the hash of the file, and no copy of it.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import ConfigError, printable, reason

FROZEN = "framework=frozen"
OF_THE_IMAGES = ("in_chans", "num_classes", "img_size")  # arguments of timm that the data set and the evaluators decide


def configuration(given: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of the run of :func:`network`, checked.

    Raises:
        ConfigError: the file cannot be read, or does not fit the backbone.
    """
    from ssl_bench.config import compose, schema
    from ssl_bench.config.from_disk import find_prepared
    from ssl_bench.training.validate import validate

    with network(given, overrides) as words:
        config = find_prepared(compose.load(words))
        schema.check(config)
        validate(config, 1)
    return config


@contextlib.contextmanager
def network(given: str, overrides: Sequence[str]) -> Iterator[list[str]]:
    """Yield the overrides of the run that evaluates a network, for a command with these overrides.

    ``which=momentum`` among them takes the second network of the file. A refusal in the block names the network as it
    was given, and not ``init``.
    """
    from ssl_bench.config.with_hydra import quoted

    if any(override.startswith("framework=") for override in overrides):
        raise ConfigError("framework: leave it out: the network of --weights is not trained")
    which = next((word.partition("=")[2] for word in reversed(overrides) if word.startswith("which=")), None)
    rest = [word for word in overrides if not word.startswith("which=")]
    if given == "random":
        yield [FROZEN, "init=null", *rest]
        return
    path, chosen, view = _of_timm(given) if given.startswith("timm:") else (Path(given), [], {})
    file, name = quoted(str(path.absolute())), printable(given)
    chosen.append(f"init={{path: {file}, which: {which}}}" if which else f"init={file}")
    try:
        wanted = _as_in_training(path, view, chosen, rest)
        if said := [word for word in (*chosen, *wanted) if word.startswith(("backbone.args.", "dataset."))]:
            print(printable(f"{given}: as in its training, {', '.join(said)}"), flush=True)
        yield [FROZEN, *chosen, *wanted, *rest]
    except ConfigError as error:
        sentence = str(error).replace(printable(str(path.absolute())), name).replace(f"init={name}", name)
        sentence = sentence.replace("or init.which", "or set which").replace("init.which", "which")
        raise ConfigError(sentence.replace("set init to", "give")) from error


def _of_timm(given: str) -> tuple[Path, list[str], dict[str, Any]]:
    """The file of weights of timm, overrides that build its network, and its view of an image by keys of a dataset."""
    import timm  # heavy: only where it is used

    from ssl_bench.config.from_disk import weights_in

    name, args = given.removeprefix("timm:"), dict[str, Any]()
    try:
        if (folder := Path(name)).is_dir():
            described = files.parse_json(files.read_bytes(folder / "config.json"))
            name, config, path = described["architecture"], described["pretrained_cfg"], weights_in(folder)
            args = {key: value for key, value in described.get("model_args", {}).items() if key not in OF_THE_IMAGES}
        else:
            from huggingface_hub import hf_hub_download

            config = vars(timm.get_pretrained_cfg(name))
            path = Path(hf_hub_download(config["hf_hub_id"], config.get("hf_hub_filename") or "model.safetensors"))
        name, interpolation = name.partition(".")[0], str(config["interpolation"])
        if "${" in json.dumps(args) or not all(word.isidentifier() for word in (name, interpolation, *args)):
            raise ValueError("its config.json names no network with arguments")
        view: dict[str, Any] = {"size": int(config["input_size"][-1]), "interpolation": interpolation}
        view |= {key: [float(value) for value in config[key]] for key in ("mean", "std")}
        view["crop"] = float(config.get("crop_pct") or 0.875)  # share of the short side
    except Exception as error:  # of a network, a cache, a file and timm's tables
        raise ConfigError(f"{given}: its weights cannot be had ({reason(error)}): give a file of them") from error
    words = [f"backbone.args.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in args.items()]
    return path, ["backbone=timm", f"backbone.name={name}", *words], view


def _as_in_training(path: Path, view: dict[str, Any], chosen: list[str], overrides: Sequence[str]) -> list[str]:
    """Overrides that give images and network the settings of the weights' training, if the user does not set them.

    The numbers of a run count for images without bounds: those of uint8 keep the numbers of their own dataset.
    """
    from ssl_bench.config import compose, from_disk
    from ssl_bench.networks import weights

    file = from_disk.weights_in(path)
    images, wanted, given = weights.trained_on(file), dict[str, Any](), {word.partition("=")[0] for word in overrides}
    if view or (images and images["image_dtype"] != weights.UINT8):
        node = compose.load([FROZEN, *chosen, *overrides])["dataset"]
        weights.check_images(file, node)
        bounded = node.get("dtype", weights.UINT8) == weights.UINT8
        numbers: Any = images if not bounded else view if node["channels"] == 3 else None
        wanted |= {key: numbers[key] for key in ("mean", "std") if numbers}
        if view and "resize" in node:
            size = node["size"] if "dataset.size" in given else view["size"]
            wanted |= {"size": size, "resize": math.floor(size / view["crop"]), "interpolation": view["interpolation"]}
    wanted = {f"dataset.{key}": value for key, value in wanted.items() if value}
    return [f"{key}={str(value).replace(' ', '')}" for key, value in wanted.items() if key not in given]
