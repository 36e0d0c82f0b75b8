"""``python -m ssl_bench.papers.experiments``: writes ``conf/experiment/<paper>/`` from the papers' tables.

An experiment is a plain Hydra grid, every combination of its values being a run. A table whose runs are no such grid
gets one per block of it that is; where those would be more than MOST, ``ssl-bench reproduce`` is the way to run it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ssl_bench import files
from ssl_bench.papers import cost, runs, tables
from ssl_bench.papers.tables import Cell, Table

MOST = 7
Settings = tuple[tuple[str, str], ...]
Grid = dict[str, list[str]]


def blocks(cells: Sequence[Cell]) -> list[Grid]:
    """Grids that together have each run of the cells once."""
    return _split(list(dict.fromkeys(tuple(sorted(_pair(o) for o in cell.overrides)) for cell in cells)))


def _pair(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def _split(found: list[Settings]) -> list[Grid]:
    """Halves what is no grid along the key that leaves the fewest grids."""
    by_keys: dict[tuple[str, ...], list[Settings]] = {}
    for settings in found:
        by_keys.setdefault(tuple(k for k, _ in settings), []).append(settings)
    if len(by_keys) > 1:
        return [grid for group in by_keys.values() for grid in _split(group)]
    values: Grid = {}
    for settings in found:
        for key, value in settings:
            values.setdefault(key, [])
            if value not in values[key]:
                values[key].append(value)
    size = 1
    for each in values.values():
        size *= len(each)
    if size == len(found):
        return [values]
    tries = []
    for key in (k for k, each in values.items() if len(each) > 1):
        groups: dict[str, list[Settings]] = {}
        for settings in found:
            groups.setdefault(dict(settings)[key], []).append(settings)
        tries.append(_joined([grid for group in groups.values() for grid in _split(group)], key))
    return min(tries, key=len)


def _joined(grids: list[Grid], key: str) -> list[Grid]:
    """Grids that differ in the values of one key only, as one."""
    joined: dict[tuple[tuple[str, tuple[str, ...]], ...], Grid] = {}
    for grid in grids:
        rest = tuple((k, tuple(v)) for k, v in grid.items() if k != key)
        if rest in joined:
            joined[rest][key] += [value for value in grid[key] if value not in joined[rest][key]]
        else:
            joined[rest] = {k: list(v) for k, v in grid.items()}
    return list(joined.values())


def wanted() -> Iterator[tuple[str, Table]]:
    """Name and table of every experiment; a figure of the same runs as an earlier table has none of its own."""
    told: list[set[tuple[str, ...]]] = []
    for table in tables.every():
        own = {cell.overrides for cell in table.cells if cell.runs}
        if own not in told:
            told.append(own)
            yield from ((f"{table.name.split('/')[0]}/{name}", table) for name in experiments(table, costs=False))


def experiments(table: Table, costs: bool = True) -> dict[str, str]:
    """File names without their ending, and contents; nothing for a table that has too many blocks.

    Args:
        costs: compose the cells to say in the head what they cost.
    """
    groups: dict[tuple[int, ...], list[Cell]] = {}
    for cell in table.cells:
        if cell.runs and cell.command == "train":
            groups.setdefault(cell.seeds, []).append(cell)
    found = [(grid, seeds) for seeds, cells in groups.items() for grid in blocks(cells)]
    if len(found) > MOST:
        return {}
    stem = table.name.split("/")[1]
    names = [stem] if len(found) == 1 else _names(stem, [grid for grid, _ in found])
    return {name: _file(table, name, grid, seeds, costs) for name, (grid, seeds) in zip(names, found, strict=True)}


def _names(stem: str, grids: Sequence[Grid]) -> list[str]:
    """Each block by its values of the fewest keys that tell every two blocks apart."""
    first = ("dataset", "framework", "loss", "negatives", "temperature")
    keys = sorted({key for grid in grids for key in grid}, key=lambda key: (key not in first, "." in key, key))
    varying = [key for key in keys if not key.startswith(("optimizer", "evaluate"))]

    def apart(a: Grid, b: Grid, chosen: Sequence[str]) -> bool:
        return any(set(a.get(key, ())).isdisjoint(b.get(key, ())) for key in chosen)

    for count in range(1, len(varying) + 1):
        for chosen in itertools.combinations(varying, count):
            if all(apart(a, b, chosen) for a, b in itertools.combinations(grids, 2)):
                names = ["_".join([stem, *(_word(key, grid[key]) for key in chosen if key in grid)]) for grid in grids]
                if len(set(names)) == len(names) and max(map(len, names)) < 64:
                    return names
    return [f"{stem}_{i + 1}" for i in range(len(grids))]


def _word(key: str, values: Sequence[str]) -> str:
    """A key's values in a file name; an option says what it is, a number needs its key."""
    own = key.rpartition(".")[2] if "." in key and values[0][:1].isdigit() else ""
    return own + "-".join("".join(c for c in value if c.isalnum() or c == "_") for value in values)


def _file(table: Table, name: str, grid: Grid, seeds: Sequence[int], costs: bool) -> str:
    paper = table.name.split("/")[0]
    mine = [cell for cell in table.cells if cell.runs and _has(grid, cell) and cell.seeds == tuple(seeds)]
    params = {key: ",".join(values) for key, values in grid.items() if key != "name"} | {
        "seed": ",".join(map(str, seeds))
    }
    count, hours = 0, 0.0
    for cell in {cell.overrides: cell for cell in mine}.values():
        count += len(seeds)
        hours += (cost.hours(runs.compose(cell.overrides)) or 0.0) * len(seeds) if costs else 0
    rows = dict.fromkeys(cell.label for cell in mine)
    expected = [(row, [c for c in mine if c.label == row and c.paper is not None]) for row in rows]
    lines = [f"{row}: {', '.join(f'{c.column} {c.reported}' for c in cells)}" for row, cells in expected if cells]
    head = [f"{table.cite}, {table.name.split('/')[1]}: {table.title}."]
    head += lines or ["The paper's numbers are not known."]
    head += [
        f"{count} runs, about {hours:.1f} h of pre-training on 8 V100.",
        f"ssl-bench train experiment={paper}/{name}",
    ]
    body = "".join(f"      {key}: {_quoted(value)}\n" for key, value in params.items())
    comment = "".join(f"# {line}\n" for line in _wrapped(head))
    return f"# @package _global_\n{comment}name: {paper}\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n{body}"


def _wrapped(lines: Sequence[str]) -> list[str]:
    import textwrap

    return [part for line in lines for part in textwrap.wrap(line, 117, subsequent_indent="  ")]


def _quoted(value: str) -> str:
    """As YAML text: Hydra reads a list of numbers or options itself."""
    return f'"{value}"' if value[0] in "[{" or "," in value or value in ("null", "true", "false") else value


def _has(grid: Mapping[str, Sequence[str]], cell: Cell) -> bool:
    own = dict(map(_pair, cell.overrides))
    return own.keys() == grid.keys() and all(own[key] in values for key, values in grid.items())


def main(folder: Path) -> int:
    """Writes every experiment, and removes what no table has any more."""
    paths = {folder / f"{name}.yaml": experiments(table)[name.split("/")[1]] for name, table in wanted()}
    for path in {*folder.glob("*/*.yaml")} - paths.keys():
        path.unlink()
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, text)
    print(f"{len(paths)} experiments in {folder}")
    return 0


if __name__ == "__main__":
    from ssl_bench.config.compose import directory

    sys.exit(main(directory() / "experiment"))
