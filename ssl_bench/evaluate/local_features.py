"""Regions of a photo whose features are similar: k-means over the locations of the network's feature maps.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv:2011.02803), section 3.2 and figures 3 and 4: block
groups 2, 3 and 4 of a ResNet, l2-normalised features, photos of 448 x 448, compared with raw RGB patches, and with a
supervised network by an evaluation of its own. The paper shows pictures only; here the regions are also compared with
annotated objects.

Shapes: P photos, K cluster counts, S side of a photo, g side of a feature map, D its channels.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import rgb_to_grayscale

from ssl_bench.data import coco
from ssl_bench.data.evalview import EvalView
from ssl_bench.data.photos import read_photo
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

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        images: str,
        annotations: str | None = None,
        photos: int = 32,
        size: int = 448,
        layers: Sequence[str] = ("layer2", "layer3", "layer4"),
        clusters: Sequence[int] = (2, 3, 4, 8),
        grid: int = 56,
        patch: int = 16,
        n_init: int = 4,
    ) -> None:
        require(len(mean) in (1, 3), "mean", list(mean), "one or three numbers: its photos are grey or coloured")
        require(Path(images).is_dir(), "images", images, "a folder with photos")
        has_file = annotations is None or Path(annotations).is_file()
        require(has_file, "annotations", annotations, "the file instances_*.json of COCO, or null")
        for name, value in {"photos": photos, "size": size, "grid": grid, "n_init": n_init}.items():
            require(value >= 1, name, value, "1 or more")
        require(bool(layers), "layers", list(layers), "one or more modules of the backbone")
        valid = len(clusters) > 0 and all(2 <= k <= MAX_CLUSTERS for k in clusters)
        require(valid, "clusters", list(clusters), f"one or more numbers from 2 to {MAX_CLUSTERS}")
        require(patch >= 1 and size % patch == 0, "patch", patch, f"a divisor of size={size}")
        self.channels, self.view = len(mean), EvalView(mean=mean, std=std)
        self.images, self.annotations = Path(images), Path(annotations) if annotations else None
        self.photos, self.size, self.layers, self.clusters = photos, size, list(layers), list(clusters)
        self.grid, self.patch, self.n_init = grid, patch, n_init

    def check(self, target: Target) -> None:
        submodules(self._backbone(target), self.layers), self._paths()

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        if target.network is None:
            return
        paths = self._paths()
        instances = self._instances(paths)  # before any computation, so that a wrong file is refused at once
        regions = self._regions(target, paths)
        for row, maps in regions.items():
            for j, k in enumerate(self.clusters):
                scores = [agreement(maps[i, j], objects) for i, objects in instances.items()]
                defined = [score for score in scores if score is not None]
                if defined:
                    yield f"{row}_k{k}_ami", sum(defined) / len(defined)
        columns = [(row, j, k) for row in regions for j, k in enumerate(self.clusters)]
        for i, path in enumerate(paths):
            clusters = {f"{row}, {k} clusters": cluster_rows(regions[row][i, j]) for row, j, k in columns}
            objects = instance_rows(instances[i]) if i in instances else None
            name = path.relative_to(self.images).with_suffix("").as_posix()
            yield name, Regions(str(path), len(self.clusters), clusters, objects)

    def _paths(self) -> list[Path]:
        paths = sorted(path for path in self.images.rglob("*") if path.suffix.lower() in PHOTOS)[: self.photos]
        require(bool(paths), "images", self.images, "a folder with photos: this one has none")
        return paths

    def _instances(self, paths: Sequence[Path]) -> dict[int, NDArray[np.int64]]:
        """Maps [S, S] of the annotated photos, by their index in ``paths``."""
        if self.annotations is None:
            return {}
        by_name = {photo.file_name: photo for photo in coco.read_instances(self.annotations).photos}
        names = [path.relative_to(self.images).as_posix() for path in paths]
        maps = {i: coco.instance_map(by_name[name], self.size) for i, name in enumerate(names) if name in by_name}
        remedy = (
            f"a file that has some of the {len(paths)} photos such as {names[0]}, or to null, or set images to the "
            "folder in which the file's file_name entries lie"
        )
        require(bool(maps), "annotations", self.annotations, remedy)
        return maps

    def _regions(self, target: Target, paths: Sequence[Path]) -> dict[str, NDArray[np.uint8]]:
        """Cluster of every location, [P, K, g, g], by row; all ranks have all of them."""
        backbone = self._backbone(target)
        channels = target.load(target.test, torch.zeros(1, dtype=torch.int64))[0].shape[0]
        if channels != self.channels:
            raise ConfigError(
                f"its photos have {self.channels} channels, but the network's images have {channels}: "
                "leave it out of evaluate"
            )
        dtype = next(backbone.parameters()).dtype
        regions: dict[str, Tensor] = {}
        for i, path in enumerate(paths):
            is_local = i % world() == rank()
            if not is_local and i > 0:  # a rank without photos opens the first one, to find the sizes of the maps
                continue
            rgb = self._open(path).to(target.device)  # [1, 3, S, S]
            pixels = rgb if self.channels == 3 else rgb_to_grayscale(rgb)
            mixed = torch.autocast(target.device.type, target.autocast) if target.autocast else nullcontext()
            with mixed:
                maps = feature_maps(backbone, self.layers, self.view(pixels, dtype), self.grid)
            maps["rgb"] = patches(rgb, self.patch)
            for row, x in maps.items():
                shape = len(paths), len(self.clusters), *x.shape[:2]
                regions.setdefault(row, torch.zeros(shape, dtype=torch.uint8, device=target.device))
                for j, k in enumerate(self.clusters if is_local else []):
                    regions[row][i, j] = torch.from_numpy(clustered(x, k, target.seed, self.n_init))
        return {row: all_sum(clusters).cpu().numpy() for row, clusters in regions.items()}

    @staticmethod
    def _backbone(target: Target) -> nn.Module:
        if not isinstance(backbone := getattr(target.network, "backbone", None), nn.Module):
            name = type(target.network).__name__
            raise ConfigError(f"{name} has no backbone: leave it out of evaluate")
        return backbone

    def _open(self, path: Path) -> Tensor:
        """Read a photo as uint8 [1, 3, S, S]."""
        resized = read_photo(path).resize((self.size, self.size), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None]


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
