"""Weights from elsewhere for a network of one's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ssl_bench import files

if TYPE_CHECKING:
    from torch import nn

    from ssl_bench.networks.candidates import Which


def load_weights(network: nn.Module, file: str | os.PathLike[str], which: Which | None = None) -> str:
    """Load a file of weights into a network, as ``ssl-bench evaluate --weights`` and ``init`` do.

        print(ssl_bench.load_weights(torchvision.models.resnet50(), "moco_v2_800ep_pretrain.pth.tar"))

    All tensors of the network must be there in their shapes, under any prefix; a classifier may be missing, and stays
    as it is then. Position embeddings of another square of patches are resampled as timm does. No code of the file is
    run.

    Args:
        network: of timm, of torchvision or your own.
        file: .safetensors, or one of ``torch.save``, or a folder that transformers has written.
        which: ``trained`` or ``momentum``, if a file has both; None: the one that its method evaluates.

    Returns:
        What was taken, and what was left out, in a sentence; of the export of a run that was trained on images of
        another type than uint8 also how it normalises them.

    Raises:
        ConfigError: the file cannot be read, or does not have this network; nothing is loaded.
    """
    from ssl_bench.networks import names, trained_on, weight_files, weights

    path = files.given_path(file)
    path = path / "model.safetensors" if path.is_dir() else path
    line = weights.load_weights(network, weight_files.read_weights(path), str(path), which, names.described(path))
    images = trained_on.trained_on(path)
    if images is None or images["image_dtype"] == trained_on.BOUNDED:
        return line
    return f"{line}; for images of {images['image_dtype']} as they are, minus {images['mean']}, over {images['std']}"
