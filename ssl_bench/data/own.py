"""``dataset=folder``: every image below a folder."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch

from ssl_bench.data.folder import Files, text_of_counts
from ssl_bench.data.layout import Listing, Tree, find_layout, walk
from ssl_bench.data.own_images import OwnImages
from ssl_bench.data.photos import FORMATS, LARGEST, Photos
from ssl_bench.data.splits import few
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.files import mark, open_regular


class OwnFolder(OwnImages):
    """All images below a folder, also in folders inside folders. Hidden files and folders are left out.

    Args:
        root: the folder.
        classes: ``folders``: an image's class is the highest folder, below ``root`` or below a split, that it is in,
            not counting folders that stand alone; ``none``: there are none; ``auto``: ``folders`` if there are two or
            more of them, and no image beside them.
    """

    key = "root"

    def __init__(self, root: str | None, classes: Literal["auto", "folders", "none"] = "auto", **common: Any) -> None:
        require(bool(root), "root", root, "the folder of your images")
        super().__init__(root=str(root), **common)
        self.classes = classes

    @property
    def location(self) -> Path:
        return self.root.absolute()

    @cached_property
    def _tree(self) -> Tree:
        remedy = "a folder of images: there is none of that name"
        require(self.location.is_dir(), "dataset.root", str(self.root), remedy)
        try:
            return walk(self.location)
        except OSError as error:
            raise ConfigError(f"dataset.root={self.root}: {error.filename}: {error.strerror}") from error
        except RecursionError as error:
            raise ConfigError(f"dataset.root={self.root}: its folders are nested too deeply: move some up") from error

    def listing(self) -> Listing:
        others = text_of_counts(self._tree.others_below())
        if not self._tree.images:
            has = f": it has {others}" if others else ""
            raise ConfigError(f"dataset.root={self.root}: there is no image in it ({', '.join(FORMATS)}){has}")
        try:
            listing = find_layout(self._tree, self.classes)
        except InvalidValue:
            raise
        except ConfigError as error:
            raise ConfigError(f"dataset.root={self.root}: {error}") from error
        loops = [f"{len(self._tree.loops)} links to a folder above them left out: {few(self._tree.loops)}"]
        notes = [*listing.notes, *([f"{others} left out"] if others else []), *(loops if self._tree.loops else [])]
        return replace(listing, notes=notes)

    def same(self, listing: Listing) -> list[int]:
        first: dict[Any, int] = {}
        files = [
            (status.st_dev, status.st_ino) if status and status.st_ino else i
            for i, status in enumerate(self._statuses(listing))
        ]
        return [first.setdefault(file, i) for i, file in enumerate(files)]

    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        return open_regular(self.location / listing.names[i], LARGEST)

    def stamp(self, listing: Listing) -> list[Any]:
        return [status and mark(status) for status in self._statuses(listing)]

    def _statuses(self, listing: Listing) -> list[os.stat_result | None]:
        return [self._tree.images[name] for name in listing.names]

    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        names, labels = [listing.names[i] for i in ids], torch.tensor([listing.labels[i] for i in ids])
        return Files(self.location, names, labels, self.workers, upright=True)
