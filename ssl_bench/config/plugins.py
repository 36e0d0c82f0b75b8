"""Plugins: packages and files of the user with classes that a configuration may name as it names those of ssl_bench.

A file is named where its class is used: ``loss=my_losses.py:Margin`` (``shorthand.py``). A package is allowed by the
environment variable ``SSL_BENCH_PLUGINS=my_losses,others.py``, to which a command adds the files that it names: a
configuration alone never runs code of another package. ``plugins: [my_tools]`` lists packages that these depend on.

The resolved configuration has for each plugin its version and a hash of its source, ``{"mine": "1.0 #0123456789"}``:
changed code makes another run, also if its version is the same.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ssl_bench.config.identity import SOURCE, leaves
from ssl_bench.errors import ConfigError, require
from ssl_bench.files import given_path

VARIABLE = "SSL_BENCH_PLUGINS"
CONSENT = f"a package of your own is allowed by {VARIABLE}=<package>"
_LOADED: dict[str, tuple[ModuleType, str]] = {}  # packages by name, with the hashes of their files when each was loaded


def allowed() -> dict[str, Path | None]:
    """The packages that the user allows, and the modules of one file with the path of the file."""
    given = filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(",")))
    return {Path(one).stem if one.endswith(".py") else one: Path(one) if one.endswith(".py") else None for one in given}


def allow_file(place: str, key: str) -> str:
    """Allow a Python file that a command names in this process; return the name of its module.

    Raises:
        ConfigError: there is no such file, or Python has another module of its name.
    """
    path = given_path(place).absolute()
    require(path.is_file() and path.stem.isidentifier(), key, place, "FILE.py:CLASS of a Python file that exists")
    module_spec = importlib.util.find_spec(path.stem) if path.stem not in _LOADED else None
    if module_spec and Path(module_spec.origin or "").absolute() != path:
        raise ConfigError(f"{key}={place}: rename {path.name}: Python has another module {path.stem}")
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*filter(None, os.environ.get(VARIABLE, "").split(",")), str(path)]))
    return path.stem


def versions(names: Any, config: Any) -> dict[str, str]:
    """The versions and sources of the plugins of a configuration, which are part of the identity of its runs.

    Args:
        names: further packages that it depends on; or an earlier result of this function, whose versions must be equal.
        config: the configuration; the packages of its classes are plugins too, except for that of a dashboard.

    Raises:
        ConfigError: a plugin is not allowed, cannot be imported, or has another version or source than in ``names``.
    """
    targets = [value for key, value in leaves(config) if key.endswith("._target_") and key != "tracking._target_"]
    packages = {str(target).partition(".")[0] for target in targets} & {*allowed()}
    if isinstance(names, Mapping) and (others := packages - names.keys()):  # whose code does not run
        raise ConfigError(f"plugins: the run was made without {', '.join(sorted(others))}, which its classes are of")
    versions_here = {name: _version(name) for name in sorted({*names, *packages})}
    for name, version in versions_here.items() if isinstance(names, Mapping) else ():
        if names[name] != version:
            raise ConfigError(f"plugins: the run was made with {name} {names[name]}: install it in place of {version}")
    return versions_here


def _version(name: str) -> str:
    if name not in allowed():
        raise ConfigError(f"plugins=[{name}] runs code of {name}: allow it with {VARIABLE}={name}, or {name}.py")
    module, source = loaded(name)
    return f"{getattr(module, '__version__', 'file')}{SOURCE}{source}"


def loaded(name: str) -> tuple[ModuleType, str]:
    """Import a package, or a module of one file, and return it with ten hexadecimal digits for its source.

    Raises:
        ConfigError: it cannot be imported, or the files of a package have changed since this process imported it; a
            file that was allowed is loaded anew.
    """
    path, (module, source) = allowed().get(name), _LOADED.get(name, (None, ""))
    if module is not None and sys.modules.get(name) is module:
        if (now := _source(name, path)) == source:
            return module, source
        if path is None:
            remedy = "restart the kernel of the notebook, or Python, which imports it again"
            raise ConfigError(f"plugins=[{name}]: its files have changed since it was imported: {remedy}")
    importlib.invalidate_caches()
    try:
        now = _source(name, path)
        module = importlib.import_module(name) if path is None else _load(name, path)
    except Exception as error:  # whatever the code of the package raises
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugins=[{name}]: {path or 'the package'} cannot be imported ({why}): mend it") from error
    _LOADED[name] = module, now
    return module, now


def _load(name: str, path: Path) -> ModuleType:
    """Load a file as a module, also if it was loaded before."""
    spec: Any = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _source(name: str, file: Path | None) -> str:
    """A hash of the names and contents of a package's files, without compiled Python, or of its one file."""
    spec, content = None if file else importlib.util.find_spec(name), hashlib.sha256()
    places = (spec.submodule_search_locations or [spec.origin or ""]) if spec else ()
    for root in [file] if file else map(Path, places):
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and path.suffix != ".pyc" and path.name[0] != "." and path.parent.name != "__pycache__":
                text = path.relative_to(root).as_posix().encode(errors="surrogateescape")
                content.update(text + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return content.hexdigest()[:10]
