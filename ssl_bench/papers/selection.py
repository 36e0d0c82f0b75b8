"""The tables, rows and columns that ``reproduce``, ``table`` and ``figure`` are about, from their arguments."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ssl_bench.config import schema
from ssl_bench.config.compositions import Progress, compositions
from ssl_bench.config.identity import NOT_IN_RUN_ID
from ssl_bench.config.ranges import converted, near
from ssl_bench.errors import ConfigError, require
from ssl_bench.files import given_path, usual_outputs
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell, Table, merge

HELP = """TABLE is such as dcl/table1; dcl/fig3 is all panels of a figure, and a paper with --all is all of its tables.
FILE.yaml is all tables of a file of your own, FILE.yaml/table1 is one.
row=NAME and col=NAME select rows and columns: by the exact name, by a pattern ('CIFAR-10*'), or by words of the name
(row=DCL: "CIFAR-10 DCL", but not "DCLW"). Any other key=value is added to every cell, such as epochs=10: these are runs
with scale=reduced, which fill no cell of the paper."""


@dataclass(frozen=True)
class Selection:
    """Tables by name, and rows and columns of them.

    Attributes:
        names: names of tables, figures or papers.
        whole: a name may be a paper, which is all of its tables; no name at all is every table.
        row, column: a name, a pattern or words of a name; None selects all.
        settings: the arguments ``key=value`` other than ``row`` and ``col``.
        folder: the folder of ``--config-dir``, with further options.
    """

    names: tuple[str, ...]
    whole: bool = False
    row: str | None = None
    column: str | None = None
    settings: tuple[str, ...] = ()
    folder: Path | None = None

    @classmethod
    def read(cls, names: Sequence[str], whole: bool, arguments: Sequence[str], folder: Path | None = None) -> Selection:
        """The selection of a command line. ``arguments`` are all ``key=value`` of it; the last of a key counts."""
        chosen = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
        settings = [argument for argument in arguments if not argument.startswith(("row=", "col="))]
        return cls(tuple(names), whole, chosen.get("row"), chosen.get("col"), tuple(settings), folder)

    def tables(self) -> list[Table]:
        """The selected tables.

        Raises:
            ConfigError: there is no such table, or none is named.
        """
        if not self.names and self.whole:
            return tables.every()
        if not self.names:
            raise ConfigError(f"name a table: {', '.join(table.name for table in tables.every())}")
        selected = [table for name in self.names for table in tables.find(name)]
        papers = [name for name in self.names if name in tables.paths()]
        if papers and not self.whole:
            raise ConfigError(f"{papers[0]} has {', '.join(t.name for t in selected)}: name one, or add --all")
        return selected

    def cells(self, table: Table) -> list[Cell]:
        """The cells of the selected rows and columns, with the settings that every cell gets.

        Raises:
            ConfigError: no row or no column of the table matches, or the scale is unknown.
        """
        rows = _matching("row", self.row, table.rows(), table.name)
        columns = _matching("col", self.column, table.columns(), table.name)
        cells = [cell for cell in table.cells if cell.row in rows and cell.column in columns]
        changes = self.changes
        return [replace(cell, overrides=tuple(merge(cell.overrides, changes))) for cell in cells] if changes else cells

    @property
    def changes(self) -> list[str]:
        """The settings that change the training or the evaluation of every cell, with ``scale=reduced`` for a training.

        Raises:
            ConfigError: the scale is unknown.
        """
        evaluated = [setting for setting in self.settings if _group(setting) == "evaluate"]
        trained = [s for s in self.settings if _group(s) not in NOT_IN_RUN_ID | {"seed", "scale"}]
        scale = self.setting("scale") or ("reduced" if trained else "full")
        converted(scale, schema.TOP_LEVEL["scale"], "scale")
        return trained + evaluated + [f"scale={scale}"] * (scale != "full")

    @property
    def of_machine(self) -> list[str]:
        """The settings on which the weights do not depend, such as ``devices`` and ``paths.data``."""
        return [setting for setting in self.settings if _group(setting) in NOT_IN_RUN_ID - {"evaluate", "launcher"}]

    @property
    def of_launcher(self) -> list[str]:
        """The launcher and its settings."""
        return [setting for setting in self.settings if _group(setting) == "launcher"]

    @property
    def seeds(self) -> list[int]:
        """The seeds in place of those of each cell; empty for the latter.

        Raises:
            ConfigError: they are no integers of 0 or more.
        """
        given = self.setting("seed")
        require(given is None or bool(re.fullmatch(r"\d+(,\d+)*", given)), "seed", given, "integers such as 0,1,2")
        return [int(number) for number in given.split(",")] if given else []

    @property
    def flags(self) -> list[str]:
        """The flags of a command that has the same options."""
        return ["--config-dir", str(self.folder)] if self.folder else []

    def call(self, table: Table) -> str:
        """A table in the words of a command, with the settings that every cell gets."""
        named = table.source.parent == tables.directory()
        return shlex.join([*self.flags, table.name if named else f"{table.source}/{table.stem}", *self.changes])

    def setting(self, key: str) -> str | None:
        """The last value of a key in ``settings``."""
        values = [setting.split("=", 1)[1] for setting in self.settings if setting.startswith(f"{key}=")]
        return values[-1] if values else None

    def results(self, cells: Sequence[Cell], progress: Progress) -> Results:
        """The results on the disk for some of its cells, for a command that only reads runs.

        Raises:
            ConfigError: a setting other than ``paths.outputs`` that changes no training and no evaluation or that no
                cell can have, or a folder that does not exist.
        """
        for setting in self.settings:
            if setting not in self.changes and not setting.startswith(("scale=", "paths.outputs=")):
                raise ConfigError(f"{setting}: leave it out: row, col, paths.outputs and keys of a training can be set")
        there = self.outputs.is_dir() or not self.setting("paths.outputs")
        require(there, "paths.outputs", self.outputs, "a folder that exists")
        selected = self.tables() if self.changes else ()
        if first := next((cell for table in selected for cell in self.cells(table) if cell.available), None):
            composed = compositions([first.overrides], folder=self.folder)[first.overrides]
            if isinstance(composed, ConfigError):
                raise composed
        return Results(self.outputs, cells, progress, self.folder)

    @property
    def outputs(self) -> Path:
        """Folder of the results."""
        given = self.setting("paths.outputs")
        return given_path(given) if given else usual_outputs()


def selected(
    names: Sequence[str], settings: Sequence[str], whole: bool = False, folder: Path | None = None
) -> Selection | None:
    """The tables of papers that words of a command and its arguments ``key=value`` select; None: they select runs."""
    selection, papers = Selection.read(names, whole, settings, folder), tables.paths()

    def of_runs(word: str) -> bool:
        if Path(word).is_dir() or (selection.outputs / word).is_dir() or re.search("[<>]", word):
            return True
        in_outputs = selection.outputs.is_dir() and "/" not in word
        return in_outputs and word not in papers and not word.endswith((".yaml", ".yml"))

    conditions = [word for word in settings if not word.startswith(("row=", "col=", "paths.outputs="))]
    return None if not whole and all(map(of_runs, names)) and (names or conditions) else selection


def _group(override: str) -> str:
    return re.split("[=./]", override.lstrip("+~"), maxsplit=1)[0]


def _matching(key: str, wanted: str | None, names: Sequence[str], table: str) -> set[str]:
    """The names that equal ``wanted``, fit it as a pattern or, if none does, contain it as whole words."""
    if wanted is None:
        return set(names)
    matches = {name for name in names if name == wanted or fnmatch.fnmatchcase(name, wanted)}
    if not matches and not re.search(r"[*?\[]", wanted):
        matches = {name for name in names if _has_words(name, wanted)}
    if not matches:
        raise ConfigError(
            f"{key}={wanted}: {table} has no such {key}{near(wanted, names)}; "
            f"set {key} to one of {', '.join(names)}, to words of one, or to a pattern such as '*{names[-1][-4:]}'"
        )
    return matches


def _has_words(name: str, wanted: str) -> bool:
    """Whether the words of ``wanted`` stand in ``name`` one after another; commas and brackets are no part of words."""
    words, sought = (re.findall(r"[^\s,()]+", text) for text in (name, wanted))
    return bool(sought) and any(words[i : i + len(sought)] == sought for i in range(len(words)))
