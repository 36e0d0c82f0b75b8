"""Find and read the tables and claims of papers, in YAML files whose format README.md describes.

Beside the papers of this package there are the user's own files.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import yaml

from ssl_bench import files
from ssl_bench.config import anchors
from ssl_bench.config.ranges import near
from ssl_bench.errors import ConfigError, in_one_line, reason, require
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import PaperClaim
from ssl_bench.papers.keys import PAPER_KEYS, check_keys
from ssl_bench.papers.read_table import read_claim, read_table

LARGEST_FILE_BYTES = 2**20  # which take seconds; the files of this package have up to 34,000


def directory() -> Path:
    """Folder of the papers' files: the one that ``SSL_BENCH_PAPERS`` names, or this package's."""
    return Path(os.environ.get("SSL_BENCH_PAPERS") or Path(__file__).parent)


def paths() -> dict[str, Path]:
    """The files of all papers, by name."""
    return {path.stem: path for path in sorted(directory().glob("*.yaml"))}


def every() -> list[Table]:
    """All tables of all papers."""
    return [table for path in paths().values() for table in read(path)[0]]


def path_of(name: str) -> tuple[Path, str]:
    """The file of a paper, of ``PAPER``, ``PAPER/TABLE``, ``FILE.yaml`` or ``FILE.yaml/TABLE``, and the table's name.

    Raises:
        ConfigError: there is no such paper or file.
    """
    if file := re.fullmatch(r"(.+\.ya?ml)(?:/([^/]*))?", name, re.DOTALL):
        path = files.given_path(file[1])
        if not path.is_file():
            raise ConfigError(f"there is no file {path}: name a YAML file with tables, or a table such as dcl/table1")
        return path, file[2] or ""
    paper, _, rest = name.partition("/")
    if (path_of_paper := paths().get(paper)) is None:
        names = list(paths())
        remedy = f"set it to one of {', '.join(names)}, or to a YAML file of your own"
        raise ConfigError(f"there is no paper {paper!r}{near(paper, names)}: {remedy}")
    return path_of_paper, rest


def find(name: str) -> list[Table]:
    """The tables of a name: ``dcl/table1``, all panels of ``dcl/fig3``, or all tables of ``dcl``; so of ``mine.yaml``.

    ``dcl/claims`` is all claims of a paper, and ``dcl/multiplier`` the claim of this name.

    Raises:
        ConfigError: there is none.
    """
    path, rest = path_of(name)
    tables, claimed = read(path)
    if not rest:
        return list(tables or claimed)
    if rest == "claims" and claimed:
        return list(claimed)
    exact = [table for table in (*tables, *claimed) if table.stem == rest]
    panels = [table for table in tables if table.stem[:-1] == rest and table.stem[-1].isalpha()]
    if not exact and not panels:
        names = [f"{name.removesuffix(rest)}{table.stem}" for table in (*tables, *claimed)]
        raise ConfigError(f"there is no table {name!r}{near(name, names)}: set it to one of {', '.join(names)}")
    return exact or panels


def read(path: Path) -> tuple[tuple[Table, ...], tuple[PaperClaim, ...]]:
    """The tables and claims of a file, which is read again when it has changed.

    Raises:
        ConfigError: the file does not have the format.
    """
    try:
        return _read(path, files.mark(path.stat()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or reason(error)}") from error


@cache
def _read(path: Path, changed: files.Mark) -> tuple[tuple[Table, ...], tuple[PaperClaim, ...]]:
    return parse(files.read_bytes(path, LARGEST_FILE_BYTES), path)


def dropped(names: tuple[str, ...] = ()) -> dict[str, str]:
    """The claims that have left the files of some papers, or of all, each with the reason."""
    paths_of_papers = [path_of(paper)[0] for paper in names or paths()]
    of_papers = [(path.stem, anchors.parse(path.read_bytes()).get("dropped") or {}) for path in paths_of_papers]
    return {f"{paper}/{claim}": why for paper, of in of_papers for claim, why in of.items()}


def parse(text: str | bytes, path: Path) -> tuple[tuple[Table, ...], tuple[PaperClaim, ...]]:
    """The tables and the claims of a paper from the text of its file, which ``path`` names in errors.

    Raises:
        ConfigError: the text does not have the format.
    """
    try:
        data = anchors.parse(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {in_one_line(error)}") from error
    check_keys(data, PAPER_KEYS, str(path), ("paper", "cite"))
    check_keys(data, PAPER_KEYS, str(path), () if data.get("claims") else ("tables",))
    require(data["paper"] == path.stem, f"{path}: paper", data["paper"], f"{path.stem}, as the file is called")
    nodes = [{str(key): node for key, node in (data.get(part) or {}).items()} for part in ("tables", "claims")]
    for name in (path.stem, *nodes[0], *nodes[1]):
        require(re.fullmatch(r"[\w.-]+", name) is not None, f"{path}: name", name, "letters, digits and any of _ . -")
    tables = [read_table(f"{path.stem}/{name}", path, data, node) for name, node in nodes[0].items()]
    claimed = [read_claim(f"{path.stem}/{name}", path, data, node) for name, node in nodes[1].items()]
    return tuple(tables), tuple(claimed)
