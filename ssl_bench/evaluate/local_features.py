"""What the network finds alike within a photo: k-means over the locations of its feature maps.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv:2011.02803), section 3.2 and figures 3 and 4: block
groups 2, 3 and 4 of a ResNet, features l2-normalised, photos of 448 x 448, beside a supervised network and raw RGB
patches. The paper shows pictures only; where objects are annotated, the regions are also measured against them.

Shapes: P photos, K cluster counts, S side of a photo, g side of a feature map, D its channels.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import rgb_to_grayscale

from ssl_bench.data import coco
from ssl_bench.data.evalview import EvalView
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.artifacts import Artifact, Regions
from ssl_bench.evaluate.target import Target, frozen, parts, tapped

KEY = "evaluate.local_features"
PHOTOS = {".jpg", ".jpeg", ".png", ".webp", ".bmp"}
MOST = 16  # clusters, as many as a picture has colours


class LocalFeatures:
    """Regions of photos by layer and number of clusters, as pictures and, where objects are annotated, as agreement.

    Yields ``<row>_k<clusters>_ami`` for every row (a layer, ``rgb``, ``reference_<layer>``): the adjusted mutual
    information between the regions and the instances at the middle of each cell, background being one of them, the mean
    over the photos that show two instances or more. Crowds are left out. Raw pixels as a target have nothing to add to
    the row ``rgb``: nothing is yielded for them. The photos are divided over the ranks. Every photo also is a Regions
    under its path within the folder.

    Args:
        mean, std: of the images that the network was trained on; one value each makes the photos grey.
        images: folder of photos, searched through; ``annotations``: COCO's instances of them, or None.
        photos: how many, the first by name.
        size: side S that photos are resized to, in both directions.
        layers: modules of the backbone that give feature maps.
        clusters: the numbers of clusters, each on its own.
        grid: larger feature maps are averaged down to it (a CIFAR stem's are four times as large).
        patch: side of the RGB patches.
        n_init: starts of every k-means, of which the best counts.
        reference: a network of timm to show beside, such as ``resnet50.tv_in1k``, which timm downloads, or a name with
            ``reference_weights``, a file with its state dict. It needs the same ``layers``.
    """

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
        reference: str | None = None,
        reference_weights: str | None = None,
    ) -> None:
        if not Path(images).is_dir():
            raise ValueError(f"images={images} is no folder: set it to one with photos")
        if annotations is not None and not Path(annotations).is_file():
            raise ValueError(f"annotations={annotations} is no file: set it to COCO's instances_*.json, or to null")
        if not clusters or min(clusters) < 2 or max(clusters) > MOST:
            raise ValueError(f"clusters={list(clusters)}: set numbers from 2 to {MOST}")
        if min(photos, size, grid, n_init) < 1 or not layers:
            raise ValueError("photos, size, grid and n_init must be 1 or more, and layers must name one or more")
        if patch < 1 or size % patch:
            raise ValueError(f"patch={patch} must divide size={size}")
        if reference_weights is not None and (reference is None or not Path(reference_weights).is_file()):
            raise ValueError(
                f"reference_weights={reference_weights} is no file, or reference does not name its network"
            )
        self.channels, self.view = len(mean), EvalView(mean=mean, std=std)
        self.images, self.annotations = Path(images), Path(annotations) if annotations else None
        self.photos, self.size, self.layers, self.clusters = photos, size, list(layers), list(clusters)
        self.grid, self.patch, self.n_init = grid, patch, n_init
        self.reference, self.reference_weights = reference, reference_weights

    def check(self, target: Target) -> None:
        parts(self._backbone(target), self.layers), self._paths()

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        if target.network is None:
            return
        paths = self._paths()
        instances = self._instances(paths)  # before anything is computed, so that a wrong file is said at once
        regions = self._regions(target, paths)
        for row, maps in regions.items():
            for j, k in enumerate(self.clusters):
                scores = [agreement(maps[i, j], objects) for i, objects in instances.items()]
                known = [score for score in scores if score is not None]
                if known:
                    yield f"{row}_k{k}_ami", sum(known) / len(known)
        columns = [(row, j, k) for row in regions for j, k in enumerate(self.clusters)]
        for i, path in enumerate(paths):
            drawn = {f"{row}, {k} clusters": lines(regions[row][i, j]) for row, j, k in columns}
            objects = shown(instances[i]) if i in instances else None
            name = path.relative_to(self.images).with_suffix("").as_posix()
            yield name, Regions(str(path), len(self.clusters), drawn, objects)

    def _paths(self) -> list[Path]:
        found = sorted(path for path in self.images.rglob("*") if path.suffix.lower() in PHOTOS)[: self.photos]
        if not found:
            raise ConfigError(f"{KEY}.images={self.images} has no photos: set it to a folder that has")
        return found

    def _instances(self, paths: Sequence[Path]) -> dict[int, NDArray[np.int64]]:
        """Maps [S, S] of the photos that are annotated, by their place in ``paths``."""
        if self.annotations is None:
            return {}
        by_name = {photo.file_name: photo for photo in coco.read(self.annotations).photos}
        names = [path.relative_to(self.images).as_posix() for path in paths]
        found = {i: coco.instance_map(by_name[name], self.size) for i, name in enumerate(names) if name in by_name}
        if not found:
            raise ConfigError(
                f"{KEY}.annotations={self.annotations} has none of the {len(paths)} photos such as {names[0]}: set "
                "images to the folder that its file_name entries start from, or annotations to null"
            )
        return found

    def _regions(self, target: Target, paths: Sequence[Path]) -> dict[str, NDArray[np.uint8]]:
        """Cluster of every location by row, [P, K, g, g], on every rank."""
        backbone = self._backbone(target)
        wanted = target.load(target.test, torch.zeros(1, dtype=torch.int64))[0].shape[0]
        if wanted != self.channels:
            raise ConfigError(
                f"evaluate=local_features has photos of {self.channels} channels and the network {wanted}: leave it out"
            )
        dtype = next(backbone.parameters()).dtype
        reference = self._reference(target.device)
        found: dict[str, Tensor] = {}
        for i, path in enumerate(paths):
            mine = i % world() == rank()
            if not mine and i > 0:  # a rank without photos still learns the sizes from the first
                continue
            pixels = self._open(path).to(target.device)  # [1, 3, S, S]
            own = pixels if self.channels == 3 else rgb_to_grayscale(pixels)
            mixed = torch.autocast(target.device.type, target.autocast) if target.autocast else nullcontext()
            with mixed:
                maps = feature_maps(backbone, self.layers, self.view(own, dtype), self.grid)
            maps["rgb"] = patches(pixels, self.patch)
            if reference is not None:
                model, view = reference
                told = feature_maps(model, self.layers, view(pixels), self.grid)
                maps |= {f"reference_{layer}": x for layer, x in told.items()}
            for row, x in maps.items():
                shape = len(paths), len(self.clusters), *x.shape[:2]
                found.setdefault(row, torch.zeros(shape, dtype=torch.uint8, device=target.device))
                for j, k in enumerate(self.clusters if mine else []):
                    found[row][i, j] = torch.from_numpy(clustered(x, k, target.seed, self.n_init))
        return {row: all_sum(maps).cpu().numpy() for row, maps in found.items()}

    @staticmethod
    def _backbone(target: Target) -> nn.Module:
        if not isinstance(backbone := getattr(target.network, "backbone", None), nn.Module):
            name = type(target.network).__name__
            raise ConfigError(f"evaluate=local_features judges a backbone, which {name} has not")
        return backbone

    def _open(self, path: Path) -> Tensor:
        """uint8 [1, 3, S, S]"""
        with Image.open(path) as image:
            resized = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1)[None]

    def _reference(self, device: torch.device) -> tuple[nn.Module, EvalView] | None:
        if self.reference is None:
            return None
        import timm

        local = self.reference_weights
        try:
            model = timm.create_model(self.reference, pretrained=local is None, num_classes=0).to(device)
        except Exception as error:  # an unknown name, or whatever a download ends with
            raise ConfigError(f"{KEY}.reference={self.reference}: {error}; or set reference_weights") from error
        if local is not None:
            state = torch.load(local, map_location="cpu", weights_only=True)
            try:
                model.load_state_dict({k: v for k, v in state.items() if not k.startswith("fc.")})
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:200]
                raise ConfigError(f"{KEY}.reference_weights={local} is not for {self.reference}: {reason}") from error
        trained_on: Any = model.pretrained_cfg
        return model, EvalView(mean=trained_on["mean"], std=trained_on["std"])


def feature_maps(backbone: nn.Module, layers: Sequence[str], view: Tensor, grid: int) -> dict[str, Tensor]:
    """What ``layers`` give for one view [1, C, S, S]: unit vectors [g, g, D], g at most ``grid``."""
    with frozen(backbone), tapped(backbone, layers) as seen:
        backbone(view)
    maps = {}
    for layer, x in seen.items():
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise ConfigError(f"{KEY}.layers: {layer} gives no feature map [n, D, g, g]: set layers to modules that do")
        if x.shape[-1] > grid:
            x = F.adaptive_avg_pool2d(x, grid)
        maps[layer] = F.normalize(x[0].float(), dim=0).permute(1, 2, 0)
    return maps


def patches(pixels: Tensor, side: int) -> Tensor:
    """uint8 [1, C, S, S] -> the pixels of every patch, [S / side, S / side, C side side] in [0, 1].

    Not normalised, or light and dark patches of one hue were the same.
    """
    x = pixels[0].float().div(255).unfold(1, side, side).unfold(2, side, side)  # [C, g, g, side, side]
    return x.permute(1, 2, 0, 3, 4).flatten(2)


def clustered(x: Tensor, k: int, seed: int, n_init: int) -> NDArray[np.uint8]:
    """k-means of the locations of a map [g, g, D]: their clusters [g, g], 0 the largest."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a plain photo has fewer kinds of places than clusters
        labels = KMeans(k, n_init=n_init, random_state=seed).fit_predict(x.flatten(0, 1).cpu().numpy())
    order = np.argsort(-np.bincount(labels, minlength=k), kind="stable")
    return np.argsort(order)[labels].reshape(x.shape[:2]).astype(np.uint8)


def agreement(regions: NDArray[np.uint8], instances: NDArray[np.int64]) -> float | None:
    """Adjusted mutual information of regions [g, g] and instances [S, S]; None where there is one instance or none."""
    from sklearn.metrics import adjusted_mutual_info_score

    rows, columns = (coco.centres(g, s) for g, s in zip(regions.shape, instances.shape, strict=True))
    seen = instances[np.ix_(rows, columns)]  # [g, g]
    told = seen != coco.CROWD
    if len(np.unique(seen[told])) < 2:
        return None
    return float(adjusted_mutual_info_score(seen[told], regions[told]))


def lines(regions: NDArray[np.uint8]) -> list[str]:
    """[g, g] -> a line of digits, to the base 16, for every row of locations."""
    return ["".join(f"{cluster:x}" for cluster in row) for row in regions.tolist()]


def shown(instances: NDArray[np.int64], grid: int = 64) -> list[str]:
    """Lines as above, of instances [S, S] at ``grid`` x ``grid`` places; ``.`` is background, ``x`` a crowd."""
    rows, columns = (coco.centres(grid, s) for s in instances.shape)
    signs = {coco.BACKGROUND: ".", coco.CROWD: "x"}
    return ["".join(signs.get(n) or f"{n % MOST:x}" for n in row) for row in instances[np.ix_(rows, columns)].tolist()]
