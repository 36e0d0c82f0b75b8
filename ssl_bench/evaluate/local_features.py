"""Regions of a photo whose features are similar: k-means over the locations of the network's feature maps.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv:2011.02803), section 3.2 and figures 3 and 4: block
groups 2, 3 and 4 of a ResNet, l2-normalised features, photos of 448 x 448, compared with raw RGB patches, and with a
supervised network by an evaluation of its own. The paper shows pictures only; here the regions are also compared with
annotated objects.

Shapes: P photos, K cluster counts, S side of a photo, g side of a feature map, D its channels.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import Meta
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import rgb_to_grayscale

from ssl_bench.config.ranges import Count
from ssl_bench.data import coco
from ssl_bench.data.photos import read_photo
from ssl_bench.data.pixels import EvalView
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import ConfigError, require
from ssl_bench.evaluate.artifacts import Artifact, Regions
from ssl_bench.evaluate.metric import Declared, Metric
from ssl_bench.evaluate.target import Evaluator, Target, captured_outputs, frozen, submodules

PHOTOS = {".jpg", ".jpeg", ".png", ".webp"}
MAX_CLUSTERS = 16  # the number of colours of a picture


class LocalFeatures(Evaluator):
    """Regions of photos by layer and number of clusters: pictures, and their agreement with annotated objects.

    Yields a Regions for every photo, under its path within the folder, and if there are annotations
    ``<row>_k<clusters>_ami`` for every row (a layer, or ``rgb``): the adjusted mutual information between the regions
    and the instances, averaged over the photos with two or more. Instances are read at the centre of each location; the
    background counts as one, crowds are left out. Yields nothing for raw pixels, which the row ``rgb`` already shows.
    The photos are divided over the ranks.

    Args:
        mean, std: of the images that the network was trained on; with one value each, the photos are made grey.
        images: folder of photos, searched with its subfolders; ``annotations``: COCO's instances of them, or None.
        photos: number of photos, the first by name.
        size: side S; photos are resized to S x S.
        layers: modules of the backbone whose outputs are feature maps.
        clusters: numbers of clusters; each is a separate k-means.
        grid: larger feature maps are averaged to this side (those of a CIFAR stem are four times as large).
        patch: side of the RGB patches.
        n_init: starts of every k-means; the best one counts.
    """

    metrics: ClassVar[Declared] = {"*_ami": Metric("number", "high", "photos")}

    needs_network = True
    mean: Sequence[float]
    std: Sequence[float]
    images: str
    annotations: str | None = None
    photos: Count = 32
    size: Count = 448
    layers: Annotated[Sequence[str], Meta(min_length=1)] = ("layer2", "layer3", "layer4")
    clusters: Annotated[Sequence[Annotated[int, Meta(ge=2, le=MAX_CLUSTERS)]], Meta(min_length=1)] = (2, 3, 4, 8)
    grid: Count = 56
    patch: Count = 16
    n_init: Count = 4

    def __post_init__(self) -> None:
        require(len(self.mean) in (1, 3), "mean", self.mean, "one or three numbers: its photos are grey or coloured")
        require(self.size % self.patch == 0, "patch", self.patch, f"a divisor of size={self.size}")
        has_file = self.annotations is None or Path(self.annotations).is_file()
        require(has_file, "annotations", self.annotations, "the file instances_*.json of COCO, or null")
        files = sorted(path for path in Path(self.images).rglob("*") if path.suffix.lower() in PHOTOS)
        require(bool(files), "images", self.images, "a folder with photos")
        self.paths = {path.relative_to(self.images).as_posix(): path for path in files[: self.photos]}

    def check(self, target: Target) -> None:
        submodules(self._backbone(target), self.layers)

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        instances = self._instances()  # before any computation, so that a wrong file is refused at once
        regions = self._regions(target)
        for row, maps in regions.items():
            for j, k in enumerate(self.clusters):
                scores = [agreement(maps[i, j], objects) for i, objects in instances.items()]
                defined = [score for score in scores if score is not None]
                if defined:
                    yield f"{row}_k{k}_ami", sum(defined) / len(defined)
        columns = [(row, j, k) for row in regions for j, k in enumerate(self.clusters)]
        for i, (name, path) in enumerate(self.paths.items()):
            clusters = {f"{row}, {k} clusters": cluster_rows(regions[row][i, j]) for row, j, k in columns}
            objects = instance_rows(instances[i]) if i in instances else None
            yield name.rpartition(".")[0], Regions(str(path), len(self.clusters), clusters, objects)

    def _instances(self) -> dict[int, NDArray[np.int64]]:
        """Maps [S, S] of the annotated photos, by their index in ``paths``."""
        if self.annotations is None:
            return {}
        by_name = {photo.file_name: photo for photo in coco.read_instances(Path(self.annotations)).images}
        annotated = {i: by_name[name] for i, name in enumerate(self.paths) if name in by_name}
        remedy = f"a file whose file_name entries are paths in {self.images}, such as {next(iter(self.paths))}"
        require(bool(annotated), "annotations", self.annotations, remedy)
        return {i: coco.instance_map(photo, self.size) for i, photo in annotated.items()}

    def _regions(self, target: Target) -> dict[str, NDArray[np.uint8]]:
        """Cluster of every location, [P, K, g, g], by row; all ranks have all of them."""
        backbone, view, channels = self._backbone(target), EvalView(mean=self.mean, std=self.std), len(self.mean)
        dtype = next(backbone.parameters()).dtype
        regions: dict[str, Tensor] = {}
        for i, path in enumerate(self.paths.values()):
            is_local = i % world() == rank()
            if not is_local and i > 0:  # a rank without photos opens the first one, to find the sizes of the maps
                continue
            photo = np.array(read_photo(path).resize((self.size, self.size), Image.Resampling.BICUBIC))
            rgb = torch.from_numpy(photo).permute(2, 0, 1)[None].to(target.device)  # [1, 3, S, S]
            pixels = rgb if channels == 3 else rgb_to_grayscale(rgb)
            with torch.autocast(target.device.type, target.autocast, enabled=target.autocast is not None):
                maps = feature_maps(backbone, self.layers, view(pixels, dtype), self.grid)
            maps["rgb"] = patches(rgb, self.patch)
            for row, x in maps.items():
                shape = len(self.paths), len(self.clusters), *x.shape[:2]
                regions.setdefault(row, torch.zeros(shape, dtype=torch.uint8, device=target.device))
                for j, k in enumerate(self.clusters if is_local else []):
                    regions[row][i, j] = torch.from_numpy(clustered(x, k, target.seed, self.n_init))
        return {row: all_sum(clusters).cpu().numpy() for row, clusters in regions.items()}

    def _backbone(self, target: Target) -> nn.Module:
        """The network's, whose images have as many channels as the photos."""
        if not isinstance(backbone := getattr(target.network, "backbone", None), nn.Module):
            raise ConfigError(f"{type(target.network).__name__} has no backbone: leave local_features out of evaluate")
        channels = next(backbone.parameters()).shape[1]
        remedy = f"{channels} numbers, one per channel of the network's images"
        require(channels == len(self.mean), "mean", self.mean, remedy)
        return backbone


def feature_maps(backbone: nn.Module, layers: Sequence[str], view: Tensor, grid: int) -> dict[str, Tensor]:
    """Outputs of ``layers`` for one view [1, C, S, S]: unit vectors [g, g, D], with g at most ``grid``.

    Raises:
        InvalidValue: a module of ``backbone`` has another output than a map.
    """
    with frozen(backbone), captured_outputs(backbone, layers) as outputs:
        backbone(view)
    maps = {}
    for layer, x in outputs.items():
        is_map = isinstance(x, Tensor) and x.ndim == 4
        require(is_map, "layers", list(layers), f"modules with outputs [n, D, g, g]: {layer} has another output")
        if x.shape[-1] > grid:
            x = F.adaptive_avg_pool2d(x, grid)
        maps[layer] = F.normalize(x[0].float(), dim=0).permute(1, 2, 0)
    return maps


def patches(pixels: Tensor, side: int) -> Tensor:
    """uint8 [1, C, S, S] -> the pixels of every patch, [S / side, S / side, C side side] in [0, 1].

    They are not normalised, which would make light and dark patches of one hue equal.
    """
    x = pixels[0].float().div(255).unfold(1, side, side).unfold(2, side, side)  # [C, g, g, side, side]
    return x.permute(1, 2, 0, 3, 4).flatten(2)


def clustered(x: Tensor, k: int, seed: int, n_init: int) -> NDArray[np.uint8]:
    """Cluster the locations of a map [g, g, D] by k-means: [g, g], numbered from 0, the largest cluster first."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a photo can have fewer different locations than clusters
        labels = KMeans(k, n_init=n_init, random_state=seed).fit_predict(x.flatten(0, 1).cpu().numpy())
    order = np.argsort(-np.bincount(labels, minlength=k), kind="stable")
    return np.argsort(order)[labels].reshape(x.shape[:2]).astype(np.uint8)


def agreement(regions: NDArray[np.uint8], instances: NDArray[np.int64]) -> float | None:
    """Adjusted mutual information of regions [g, g] and instances [S, S]; None where there is one instance or none."""
    from sklearn.metrics import adjusted_mutual_info_score

    rows, columns = (coco.centres(g, s) for g, s in zip(regions.shape, instances.shape, strict=True))
    at_centres = instances[np.ix_(rows, columns)]  # [g, g]
    counts = at_centres != coco.CROWD
    if len(np.unique(at_centres[counts])) < 2:
        return None
    return float(adjusted_mutual_info_score(at_centres[counts], regions[counts]))


def cluster_rows(regions: NDArray[np.uint8]) -> list[str]:
    """Clusters [g, g] as text: a string for each row, a hexadecimal digit for each location."""
    return ["".join(f"{cluster:x}" for cluster in row) for row in regions.tolist()]


def instance_rows(instances: NDArray[np.int64], grid: int = 64) -> list[str]:
    """Instances [S, S] at ``grid`` x ``grid`` locations as such text; ``.`` is background, ``x`` a crowd."""
    rows, columns = (coco.centres(grid, s) for s in instances.shape)
    signs = {coco.BACKGROUND: ".", coco.CROWD: "x"}
    at_locations = instances[np.ix_(rows, columns)].tolist()
    return ["".join(signs.get(n) or f"{n % MAX_CLUSTERS:x}" for n in row) for row in at_locations]
