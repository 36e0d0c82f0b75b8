"""The images that a run's network was trained on, as its directory and its exports have them beside the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from ssl_bench import files
from ssl_bench.config.from_disk import OF_FOLDER
from ssl_bench.errors import ConfigError

BOUNDED = "uint8"  # images that are divided by 255; those of other types are taken as they are


class Images(TypedDict):
    """Type of the images, and how each channel was normalised."""

    image_dtype: str
    mean: list[float] | None
    std: list[float] | None


class _Normalised(TypedDict):
    mean: list[float] | None
    std: list[float] | None


def images_of(dataset: Mapping[str, Any]) -> Images:
    """What is said of the images of a run's ``dataset``."""
    return {"image_dtype": dataset.get("dtype", BOUNDED), "mean": dataset["mean"], "std": dataset["std"]}


def trained_on(weights: Path) -> Images | None:
    """The images of a run in a directory, or of the export that has a file of weights; None: nothing says them."""
    if weights.is_dir():
        config = (files.read_json(weights / "results.json", dict, named=False, of_a_run=True) or {}).get("config", {})
        dataset = config.get("dataset")
        return images_of(dataset) if files.fits(dataset, _Normalised) else None
    beside = weights.with_name("config.json") if weights.name == OF_FOLDER else weights.with_suffix(".json")
    return files.read_json(beside, Images, named=False)


def check_images(weights: Path, dataset: Mapping[str, Any]) -> None:
    """Refuse to evaluate weights on images that are normalised differently from those that they were trained on.

    Raises:
        ConfigError: the images of ``dataset`` are of another type.
    """
    images, here = trained_on(weights), dataset.get("dtype", BOUNDED)
    if images and (there := images["image_dtype"]) != here:
        wrong = f"these weights were trained on images of {there}, and those of dataset are of {here}"
        raise ConfigError(f"init={weights}: {wrong}: set dataset to images of {there}")
