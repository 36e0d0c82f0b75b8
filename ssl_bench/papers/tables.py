"""Read and check the tables of a paper from its YAML file, whose format README.md describes.

Beside the papers of this package there are the user's own: a file, or the folder ``papers`` below ``--config-dir``.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ssl_bench import files
from ssl_bench.config.build import near, one_of
from ssl_bench.errors import ConfigError, reason, require
from ssl_bench.papers.cells import BASELINES, Cell, Metric, Over, Table, flat, merge
from ssl_bench.papers.claims import KINDS, STATISTICS, Criterion, PaperClaim
from ssl_bench.papers.keys import (
    CLAIM_KEYS,
    CLAIM_NEEDS,
    COLUMN_KEYS,
    CRITERION_KEYS,
    LIMITS,
    OVERRIDES,
    PAPER_KEYS,
    ROW_KEYS,
    TABLE_KEYS,
    VALUE_KEYS,
    as_number,
    check_keys,
)

PROVENANCE = ("text", "code", "derived", "recollection", "unknown")
COMMANDS = ("train", "mi", "weight", "none")
GAP, ERROR = 10.0, 0.05  # of a comparison that names none
# The first points of Sobol's sequence in the square (Sobol 1967), in sixteenths. Each of 16 parts of either axis has
# one of them, and so has each of 4 x 4 parts of the square; of the first 8, each of 4 x 2; of 4, each of 2 x 2.
SOBOL = (
    (0, 8, 12, 4, 6, 14, 10, 2, 3, 11, 15, 7, 5, 13, 9, 1),
    (0, 8, 4, 12, 6, 14, 2, 10, 5, 13, 1, 9, 3, 11, 7, 15),
)


def directory() -> Path:
    """Folder of the papers' files: the one that ``SSL_BENCH_PAPERS`` names, or this package's."""
    return Path(os.environ.get("SSL_BENCH_PAPERS") or Path(__file__).parent)


def paths(own: Path | None = None) -> dict[str, Path]:
    """The files of all papers, by name.

    Args:
        own: a folder with further ones, which need not exist.

    Raises:
        ConfigError: one of them has the name of a paper of this package.
    """
    found, more = ({path.stem: path for path in each.glob("*.yaml")} if each else {} for each in (directory(), own))
    if both := sorted(found.keys() & more.keys()):
        raise ConfigError(
            f"{more[both[0]]}: this package has a paper {both[0]}: rename the file, and set its key paper"
        )
    return dict(sorted((found | more).items()))


def papers(own: Path | None = None) -> list[str]:
    """Names of all papers."""
    return list(paths(own))


def every(own: Path | None = None) -> list[Table]:
    """All tables of all papers."""
    return [table for path in paths(own).values() for table in read(path)[0]]


def path_of(name: str, own: Path | None = None) -> tuple[Path, str]:
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
    if (found := paths(own).get(paper)) is None:
        known = papers(own)
        write = f", or write {own / paper}.yaml" if own else ", or to a YAML file of your own"
        raise ConfigError(
            f"there is no paper {paper!r}{near(paper, known)}: set it to one of {', '.join(known)}{write}"
        )
    return found, rest


def find(name: str, own: Path | None = None) -> list[Table]:
    """The tables of a name: ``dcl/table1``, all panels of ``dcl/fig3``, or all tables of ``dcl``; so of ``mine.yaml``.

    ``dcl/claims`` is all claims of a paper, and ``dcl/multiplier`` the claim of this name.

    Raises:
        ConfigError: there is none.
    """
    path, rest = path_of(name, own)
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


def load(paper: str, own: Path | None = None) -> tuple[Table, ...]:
    """The tables of a paper, as :func:`read` reads them."""
    return read(path_of(paper, own)[0])[0]


def claims(paper: str, own: Path | None = None) -> tuple[PaperClaim, ...]:
    """The claims of a paper, as :func:`read` reads them."""
    return read(path_of(paper, own)[0])[1]


def read(path: Path) -> tuple[tuple[Table, ...], tuple[PaperClaim, ...]]:
    """The tables and claims of a file, which is read again when it has changed.

    Raises:
        ConfigError: the file does not have the format.
    """
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, changed: int) -> tuple[tuple[Table, ...], tuple[PaperClaim, ...]]:
    try:
        return parse(files.read_bytes(path).decode(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error


def parse(text: str, path: Path) -> tuple[tuple[Table, ...], tuple[PaperClaim, ...]]:
    """The tables and the claims of a paper from the text of its file, which ``path`` names in errors.

    Raises:
        ConfigError: the text does not have the format.
    """
    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    check_keys(data, PAPER_KEYS, str(path), ("paper", "cite"))
    check_keys(data, PAPER_KEYS, str(path), () if data.get("claims") else ("tables",))
    require(data["paper"] == path.stem, f"{path}: paper", data["paper"], f"{path.stem}, as the file is called")
    nodes = [{str(key): node for key, node in (data.get(part) or {}).items()} for part in ("tables", "claims")]
    for name in (path.stem, *nodes[0], *nodes[1]):
        require(re.fullmatch(r"[\w.-]+", name) is not None, f"{path}: name", name, "letters, digits and any of _ . -")
    tables = [_table(f"{path.stem}/{name}", path, data, node) for name, node in nodes[0].items()]
    claimed = [_claim(f"{path.stem}/{name}", path, data, node) for name, node in nodes[1].items()]
    names = [table.name for table in (*tables, *claimed)] + [f"{path.stem}/claims"]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"{path}: {repeated[0]} stands there twice: rename a claim")
    return tuple(tables), tuple(claimed)


def _claim(name: str, path: Path, paper: Mapping[str, Any], node: Mapping[str, Any]) -> PaperClaim:
    """A claim: a table whose trainings all have ``scale=reduced``, so that they never fill a cell of the paper."""
    check_keys(node, CLAIM_KEYS, name, CLAIM_NEEDS)
    one_of(f"{name}.kind", node["kind"], KINDS)
    one_of(f"{name}.by", node.get("by", "paper"), ("paper", "ours"))
    ours = node.get("by") == "ours"
    reduced = ["scale=reduced"] if node.get("command", "train") == "train" else []
    as_table = {key: value for key, value in node.items() if key in TABLE_KEYS}
    table = _table(name, path, paper, as_table | {"set": [flat(node.get("set")), reduced]})
    if any(cell.paper is not None for cell in table.cells):
        raise ConfigError(f"{name}: a claim has no values of the paper: name their table in beside")
    theory = {
        str(curve): []
        if of == "row"
        else [as_number(n, f"{name}: theory {curve}", "numbers, or to row") for n in flat(of)]
        for curve, of in (node.get("theory") or {}).items()
    }
    for curve, numbers in theory.items():
        if len(numbers) != len(table.columns()) and (numbers or curve not in {cell.label for cell in table.cells}):
            raise ConfigError(f"{name}: theory {curve}: set a number for each column, or row if it is one of the rows")
    criteria = [_criterion(each, table, name, True) for each in node.get("controls") or []]
    criteria += [_criterion(each, table, name, False) for each in node["criteria"]]
    if node["kind"] == "equivalence" and not all(each.control or "within" in each.limit for each in criteria):
        raise ConfigError(f"{name}: kind=equivalence: set within in each of its criteria")
    beside, paper_name = str(node.get("beside") or ""), paper["paper"]
    if beside.startswith(f"{paper_name}/"):  # a table of this file
        table_name, _, part = beside.removeprefix(f"{paper_name}/").partition(" ")
        beside = f"{shlex.quote(f'{path}/{table_name}')} {part}"
    return PaperClaim(
        **{field.name: getattr(table, field.name) for field in fields(Table)},
        says="Ours: " * ours + _line(node["claim"]),
        ours=ours,
        where=str(node["where"]),
        kind=node["kind"],
        seeds_because=_line(node["seeds_because"]),
        criteria=tuple(criteria),
        minutes=as_number(node["minutes"], f"{name}: minutes"),
        beside=beside,
        theory=theory,
        contradicted=_line(node.get("contradicted", "contradicted")),
    )


def _criterion(node: Any, table: Table, where: str, control: bool) -> Criterion:
    check_keys(node, LIMITS | CRITERION_KEYS, f"{where} criterion")
    sides, statistic = LIMITS & set(node), str(node.get("statistic", "mean"))
    if "says" not in node or "of" not in node or len(sides) != 1:
        raise ConfigError(f"{where}: a criterion has says, of, and one of above, below and within")
    one_of(f"{where}: statistic", statistic, tuple(STATISTICS))
    (side,) = sides
    limit = as_number(node[side], f"{where} criterion: {side}")
    ends = {"above": (limit, math.inf), "below": (-math.inf, limit), "within": (-limit, limit)}[side]
    of, minus = (_selected(node[key], table, where) if key in node else () for key in ("of", "minus"))
    if statistic == "slope" and not (table.doubling and len({cell.column for cell in of}) > 1):
        raise ConfigError(f"{where}: statistic=slope: set x: {{doubling: true}}, and of to two columns or more")
    return Criterion(_line(node["says"]), f"{side} {limit:g}", ends, statistic, of, minus, control)


def _selected(node: Any, table: Table, where: str) -> tuple[Cell, ...]:
    """The cells that ``{row: PATTERN, column: PATTERN}`` names; a row is named with its measure.

    With ``metric`` they are those of another metric of the same runs.
    """
    check_keys(node, {"row", "column", "metric"}, f"{where} criterion")
    row, column = (str(node.get(key, "*")) for key in ("row", "column"))
    cells = tuple(cell for cell in table.cells if _is(cell.label, row) and _is(cell.column, column))
    if not cells:
        raise ConfigError(f"{where}: no cell has row {row} and column {column}")
    if metric := node.get("metric"):
        Metric.read(metric)
        return tuple(replace(cell, metric=metric) for cell in cells)
    return cells


def _is(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _line(text: Any) -> str:
    return " ".join(str(text or "").split())


def _table(name: str, path: Path, paper: Mapping[str, Any], node: Mapping[str, Any]) -> Table:
    check_keys(node, TABLE_KEYS, name, ("title", "columns", "rows"))
    if node.get("best"):
        one_of(f"{name}.best", node["best"], ("row", "column"))
    compared = _compared(name, node)
    if node.get("points") and (node.get("x") or node.get("best")):
        raise ConfigError(f"{name}: leave out x and best: a table with points prints what it fits to them")
    columns = node["columns"]
    if isinstance(columns, list):
        columns = dict.fromkeys(columns, node.get("each"))
    columns = {str(label): _as_mapping(entry) for label, entry in columns.items()}
    for label, column in columns.items():
        check_keys(column, COLUMN_KEYS, f"{name} column {label}")
    x = node.get("x") or {}
    check_keys(x, {"label", "doubling"}, f"{name} x", ("label",) if x else ())
    cells = [
        cell
        for label, entry in node["rows"].items()
        for cell in _row(name, str(label), _as_mapping(entry), node, columns, paper["paper"], bool(x))
    ]
    if compared["reference"] and (compared["gap"] or "points" in node):
        cells += _baselines(cells, compared["reference"])
    return Table(
        name=name,
        title=node["title"],
        cite=paper["cite"],
        note=_line(node.get("note")),
        cells=tuple(cells),
        x=x.get("label", ""),
        y=str(node.get("y") or ""),
        doubling=bool(x.get("doubling", False)),
        best=str(node.get("best", "")),
        source=path,
        **compared,
    )


def _compared(name: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a table that are about its comparison."""
    compare = node.get("compare") or {}
    check_keys(compare, {"to", "margin", "gap", "error"}, f"{name} compare")
    if compare and compare.get("to") not in node["rows"]:
        raise ConfigError(f"{name}: compare: set to to the name of a row")
    text = str(compare.get("margin", 0))
    gap, error = (as_number(compare.get(k, v), f"{name} compare: {k}") for k, v in (("gap", GAP), ("error", ERROR)))
    relative, margin = text.endswith("%"), as_number(text.removesuffix("%"), f"{name} compare: margin")
    margin /= 100 if relative else 1
    if compare and not (margin > 0 or "points" in node):
        raise ConfigError(f"{name}: compare: set margin to a positive number, or to a share such as 10%")
    if gap < 0 or not 0 < error < 1 or (relative and not gap):
        raise ConfigError(f"{name}: compare: set gap to a positive number, or to 0 without a share, error to 0 to 1")
    return {"reference": compare.get("to", ""), "margin": margin, "relative": relative, "gap": gap, "error": error}


def _baselines(cells: Sequence[Cell], reference: str) -> list[Cell]:
    """Rows of raw pixels and of the network at initialisation, by the runs of the reference row."""
    first: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        if cell.row == reference:
            first.setdefault((cell.column, cell.metric), cell)
    return [
        replace(
            cell,
            row=row,
            measure=" ".join(cell.measure.split()[: -len(cell.over) or None]),
            metric=cell.metric.replace("/", f"{mark}/", 1),
            paper=None,
            provenance="unknown",
            note="",
            over=(),
        )
        for row, mark in BASELINES.items()
        for cell in first.values()
    ]


def _row(
    name: str,
    label: str,
    row: Mapping[str, Any],
    table: Mapping[str, Any],
    columns: Mapping[str, Mapping[str, Any]],
    paper: str,
    figure: bool,
) -> Iterator[Cell]:
    """The cells of a row, measure by measure."""
    where = f"{name} row {label}"
    check_keys(row, ROW_KEYS, where)
    command = table.get("command", "train")
    one_of(f"{name}.command", command, COMMANDS)
    metrics = row.get("metrics") or ({"": row["metric"]} if "metric" in row else table.get("metrics"))
    metrics = metrics or {"": table.get("metric") or ""}
    over, compared = _over(where, row, table), table.get("compare") or {}
    equals = row.get("placebo", False)
    equals = compared.get("to", "") if equals is True else equals or ""
    if (equals or not row.get("compared", True)) and not compared:
        raise ConfigError(f"{where}: leave out placebo and compared: its table has no compare")
    if equals and (equals not in table["rows"] or equals == label):
        raise ConfigError(f"{where}: placebo={equals}: set placebo to the row that it equals, or to true")
    against = equals or (compared.get("to", "") if row.get("compared", True) else "")
    lists = row.get("values") or {}
    lists = lists if isinstance(lists, Mapping) else {"": lists}
    if unknown := sorted(set(lists) - set(metrics)):
        raise ConfigError(f"{where}: values has {', '.join(unknown)}, which metrics lacks")
    for measure, metric in metrics.items():
        values = lists.get(measure) or [None] * len(columns)
        if len(values) != len(columns):
            raise ConfigError(f"{where} {measure}: set {len(columns)} values, one per column, not {len(values)}")
        for point, ((heading, column), value) in itertools.product(
            _points(over, table), zip(columns.items(), values, strict=True)
        ):
            number, provenance, entry = _value(value, row.get("provenance", table.get("provenance", "text")), where)
            column_overrides = [o.replace("{column}", heading) for o in flat(column.get("set"))]
            overrides = [flat(table.get("set")), flat(row.get("set")), column_overrides, flat(entry.get("set")), point]
            notes = [node.get("note") for node in (entry, row, column)]
            missing = [node.get("missing") for node in (entry, row, column, table)]
            for each in (o for part in overrides for o in part):
                require(bool(re.match(r"~\w|[^=\s]+=", each)), f"{where}: set", each, OVERRIDES[1])
            measured = str(column.get("metric", metric)).replace("{column}", heading)
            if measured or (command != "none" and not any(missing)):
                Metric.read(measured)
            seeds = tuple(row.get("seeds") or table.get("seeds") or (0,))
            require(min(seeds) >= 0, f"{where}: seeds", list(seeds), "integers of 0 or more")
            yield Cell(
                row=label,
                column=heading,
                measure=" ".join(filter(None, [measure, *point])),
                metric=measured,
                overrides=tuple(merge([f"name={paper}"], *overrides)),
                paper=number,
                provenance=provenance,
                seeds=seeds,
                command=command,
                note="; ".join(map(_line, filter(None, notes))),
                missing=next(filter(None, missing), ""),
                x=as_number(column.get("x", heading), f"{name} column {heading}: x") if figure else None,
                over=over,
                against="" if against == label else against,
                placebo=bool(equals),
                spread=str(row.get("spread", "")),
            )


def _over(where: str, row: Mapping[str, Any], table: Mapping[str, Any]) -> Over:
    """The keys of a design with their ranges; empty for a row whose cells have one point."""
    if "points" not in table:
        if "over" in row or "over" in table:
            raise ConfigError(f"{where}: over needs points, the number of points of the table's design")
        return ()
    count, ranges = table["points"], row.get("over", table.get("over", {}))
    if type(count) is not int or count not in (4, 8, 16):
        raise ConfigError(f"{where}: points={count}: set points to 4, 8 or 16")
    if not isinstance(ranges, Mapping) or len(ranges) not in (0, len(SOBOL)):
        raise ConfigError(f"{where}: set over to two keys with their ranges, such as {{optimizer.lr: [0.03, 10], ...}}")
    over = []
    for key, ends in ranges.items():
        if not (isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends)):
            raise ConfigError(f"{where}: over: set {key} to two numbers, the ends of its range")
        if not 0 < ends[0] < ends[1] < math.inf:
            raise ConfigError(f"{where}: over: set {key} to two positive numbers in ascending order: its axis is a log")
        over.append((str(key), float(ends[0]), float(ends[1])))
    return tuple(over)


def _points(over: Over, table: Mapping[str, Any]) -> list[list[str]]:
    """The overrides of each point of a design, evenly over the logarithm of each key; without keys one of none."""
    if not over:
        return [[]]
    shares = ([(place + 0.5) / len(axis) for place in axis[: table["points"]]] for axis in SOBOL)
    return [
        [f"{key}={low * (high / low) ** share:.3g}" for (key, low, high), share in zip(over, point, strict=True)]
        for point in zip(*shares, strict=True)
    ]


def _value(value: Any, provenance: str, where: str) -> tuple[float | None, str, Mapping[str, Any]]:
    """A number, where it comes from, and the mapping that it stands in."""
    entry: Mapping[str, Any] = value if isinstance(value, Mapping) else {"is": value}
    check_keys(entry, VALUE_KEYS, where)
    number, provenance = entry.get("is"), entry.get("provenance", provenance)
    if isinstance(number, str):
        text, _, provenance = number.partition(" ")
        number = as_number(text, f"{where}: values", "numbers such as 49.4, or 49.4 recollection")
    if number is None:
        provenance = "unknown"
    one_of(f"{where}.provenance", provenance, PROVENANCE)
    return None if number is None else float(number), provenance, entry


def _as_mapping(entry: Any) -> Mapping[str, Any]:
    """``entry``, or ``{set: entry}`` for a list of overrides."""
    return entry if isinstance(entry, Mapping) else {"set": entry or []}
