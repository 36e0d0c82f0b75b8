"""Plugins: packages of the user with classes that a configuration may name as it names those of ssl_bench.

A configuration lists its plugins (``plugins: [my_losses]``), and the user must have allowed them, by the environment
variable ``SSL_BENCH_PLUGINS=my_losses,others`` or by installing a package with an entry point ``ssl_bench.plugins`` for
them. So a configuration alone never runs code of another package. A dashboard, the class of ``tracking``, need not be
listed: no run depends on it.

The resolved configuration has the version of each and a hash of its source, ``{"my_losses": "1.0 #0123456789"}``: what
has changed in the code is another run, whether its author has counted the version up or not.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ssl_bench.config.identity import SOURCE
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.files import Mark, mark

VARIABLE, GROUP = "SSL_BENCH_PLUGINS", "ssl_bench.plugins"
CONSENT = f"a package of your own is allowed by {VARIABLE}=<package>"
LISTED = " and listed in plugins=[<package>]"
_LOADED: dict[str, tuple[ModuleType, str]] = {}  # packages by name, with the hashes of their files when each was loaded


def allowed() -> frozenset[str]:
    """The packages that the user allows."""
    return frozenset(filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(",")))) | _installed()


@cache
def _installed() -> frozenset[str]:
    return frozenset(entry.module.partition(".")[0] for entry in importlib.metadata.entry_points(group=GROUP))


def versions(names: Any) -> dict[str, str]:
    """The versions and sources of the plugins that a configuration lists, which are part of the identity of its runs.

    Args:
        names: a list of packages, or what this function returned for one: then they must be the same.

    Raises:
        ConfigError: a plugin is not allowed, cannot be imported, has no version, or another one or another source.
    """
    if not isinstance(names, list | Mapping) or not all(isinstance(name, str) for name in names):
        raise InvalidValue("plugins", names, "a list of packages, such as [my_losses]")
    versions_here = {name: _version(name) for name in names}
    for name, version in versions_here.items() if isinstance(names, Mapping) else ():
        if names[name] != version:
            raise ConfigError(f"plugins: the run was made with {name} {names[name]}: install it in place of {version}")
    return versions_here


def _version(name: str) -> str:
    if name not in allowed():
        raise ConfigError(f"plugins=[{name}] runs code of the package {name}: allow it with {VARIABLE}={name}")
    module, source = loaded(name)
    version = getattr(module, "__version__", None)
    for distribution in importlib.metadata.packages_distributions().get(name, []) if version is None else ():
        version = importlib.metadata.version(distribution)
    if version is None:
        raise ConfigError(f"plugins=[{name}]: the package has no version: set {name}.__version__")
    return f"{version}{SOURCE}{source}"


def loaded(name: str) -> tuple[ModuleType, str]:
    """Import a package, or a module of one file, and return it with ten hexadecimal digits for its source.

    Raises:
        ConfigError: it cannot be imported, or its files have changed since this process imported it.
    """
    module, source = _LOADED.get(name, (None, ""))
    if module is not None and sys.modules.get(name) is module:
        if _source(name) != source:
            remedy = "restart the kernel of the notebook, or Python, which imports it again"
            raise ConfigError(f"plugins=[{name}]: its files have changed since it was imported: {remedy}")
        return module, source
    importlib.invalidate_caches()
    try:
        source, module = _source(name), importlib.import_module(name)
    except Exception as error:  # whatever the code of the package raises
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugins=[{name}]: the package cannot be imported ({why}): install it") from error
    _LOADED[name] = module, source
    return module, source


def _source(name: str) -> str:
    """A hash of the names and contents of a package's files, without compiled Python."""
    spec, files = importlib.util.find_spec(name), list[tuple[str, Path, Mark]]()
    for root in map(Path, (spec.submodule_search_locations or [spec.origin or ""]) if spec else ()):
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and path.suffix != ".pyc" and path.name[0] != "." and path.parent.name != "__pycache__":
                files.append((path.relative_to(root).as_posix(), path.absolute(), mark(path.stat())))
    return _hash(tuple(files))


@lru_cache(64)  # the runs of a grid have the same plugins
def _hash(files: tuple[tuple[str, Path, Mark], ...]) -> str:
    content = hashlib.sha256()
    for name, path, _ in files:
        content.update(name.encode(errors="surrogateescape") + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:10]


def check_listed(node: Any, listed: Iterable[str], key: str = "") -> None:
    """Refuse a target whose package is neither ssl_bench nor a listed plugin; a dashboard is left alone."""
    if isinstance(node, Mapping) and key != "tracking":
        for name, value in node.items():
            check_listed(value, listed, f"{key}.{name}" if key else str(name))
        package = str(node.get("_target_", "ssl_bench")).partition(".")[0]
        if package in allowed() and package not in listed:
            raise ConfigError(f"{key}._target_={node['_target_']}: set plugins=[{package}] too")
