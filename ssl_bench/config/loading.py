"""Load the packages of plugins so that their code in memory is that of their files, which are hashed."""

import hashlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from ssl_bench.errors import ConfigError
from ssl_bench.files import Mark, mark

Files = tuple[tuple[str, Path, Mark], ...]  # name in the package, path, and what changes when it is written again


class _Loaded(NamedTuple):
    """A package, where it was loaded from, and the files that were there right before."""

    module: ModuleType
    roots: Sequence[Path]
    files: Files


_LOADED: dict[str, _Loaded] = {}  # by name


def loaded(name: str) -> tuple[ModuleType, str]:
    """Import a package, or a module of one file; return it with ten hexadecimal digits for its source.

    A package whose files have been written since it was loaded, as in a notebook, is loaded again, and so is one that
    was imported by something else: what its files were then is not known.

    Raises:
        ConfigError: it cannot be imported, or not for a second time.
    """
    before = {key: module for key, module in sys.modules.items() if key == name or key.startswith(f"{name}.")}
    last = _LOADED.pop(name, None)
    if last is None or before.get(name) is not last.module or _files(last.roots) != last.files:
        last = _load(name, before)
    _LOADED[name] = last
    return last.module, _hash(last.files)


def _load(name: str, before: Mapping[str, ModuleType]) -> _Loaded:
    """Import a package with all of its modules anew.

    Args:
        before: those that were imported before.
    """
    contents, again = {key: dict(vars(module)) for key, module in before.items()}, _Again(name, before)
    for key in before:
        del sys.modules[key]
    importlib.invalidate_caches()
    try:
        roots = _roots(find_spec(name))
        files = _files(roots)
        if before:
            sys.meta_path.insert(0, again)
        module = importlib.import_module(name)
    except Exception as error:  # whatever the code of the package raises
        for key in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
            del sys.modules[key]
        for key, module in before.items():
            vars(module).clear()
            vars(module).update(contents[key])
            sys.modules[key] = module
        why = f"{type(error).__name__}: {error}"
        how = f"loaded again ({why}): mend it, or restart the notebook" if before else f"imported ({why}): install it"
        raise ConfigError(f"plugins=[{name}]: the package cannot be {how}") from error
    finally:
        if again in sys.meta_path:
            sys.meta_path.remove(again)
    return _Loaded(module, roots, files)


def _roots(spec: ModuleSpec | None) -> list[Path]:
    """The folders of a package, or the file of a module."""
    places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
    return [Path(place).absolute() for place in places]


def _files(roots: Sequence[Path]) -> Files:
    """The files of a package, without compiled Python."""
    paths = [(root, path) for root in roots for path in (sorted(root.rglob("*")) if root.is_dir() else [root])]
    return tuple(
        (path.relative_to(root).as_posix(), path, mark(path.stat()))
        for root, path in paths
        if path.is_file() and path.suffix != ".pyc" and path.name[0] != "." and path.parent.name != "__pycache__"
    )


@lru_cache(64)
def _hash(files: Files) -> str:
    """Ten hexadecimal digits for the names and contents of files."""
    content = hashlib.sha256()
    for name, path, _ in files:
        content.update(name.encode(errors="surrogateescape") + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:10]


class _Again(MetaPathFinder):
    """Finds the modules of a package that is loaded again.

    Args:
        name: of the package.
        modules: those that were imported before, by name.
    """

    def __init__(self, name: str, modules: Mapping[str, ModuleType]) -> None:
        self.name, self.modules = name, modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self.name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _FromSource(fullname, spec.loader.path, self.modules.get(fullname))
        return spec


class _FromSource(SourceFileLoader):
    """Loads a module from its source, into the object that it was before: whoever has imported it has the new one.

    Compiled Python is not read: it may be of another source that was written in the same second.
    """

    def __init__(self, fullname: str, path: str, module: ModuleType | None) -> None:
        super().__init__(fullname, path)
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if self._module is not None:
            vars(self._module).clear()
        return self._module

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)
