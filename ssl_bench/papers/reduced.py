"""Reduced rows of a table: what runs of ``scale=reduced`` measured, beside the paper's numbers.

Rows that are compared, those of one dataset, have one family of runs. A run belongs to a cell if it has the settings
that distinguish the cell in its table, and the classes of its objective. In a family each other setting has one value
in all cells, or in each cell that of the cell's recipe. So no difference between two reduced numbers is that of a
setting which the table does not vary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ssl_bench.config.identity import NOT_HASHED, NOT_IN_RUN_ID, OWN, text
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell, Table
from ssl_bench.papers.recipe import LEFT_OUT
from ssl_bench.results.runs import RunFolder, entries

OBJECTIVE = ("loss", "framework", "negatives", "positives", "similarity", "temperature")
FIRST = ("backbone", "head", "dataset", "augment", "epochs", "max_steps", "batch_size", *OBJECTIVE)  # of a footnote
NAMED = 6  # settings that a footnote names; more are counted
Options = tuple[Mapping[str, str], Mapping[str, str]]  # of groups: those of runs, those of a recipe
Settings = dict[str, str]  # values as text by name; the class of a part has the name of its group


@dataclass(frozen=True, eq=False)
class Member:
    """The runs of a cell that differ in their seeds only.

    Attributes:
        trained, recipe: settings of the runs, and of the cell's recipe.
        options: of groups, of both.
    """

    cell: Cell
    runs: list[RunFolder]
    trained: Settings
    recipe: Settings
    options: Options

    @cached_property
    def off(self) -> set[str]:
        """The settings that are not those of the recipe."""
        return {name for name, value in self.trained.items() if self.recipe.get(name) != value}

    def differences(self) -> dict[str, tuple[str, str]]:
        """The same, each with its value and that of the recipe; of a part of another class, its option only."""
        differences = {}
        for name in self.off:
            group = name.partition(".")[0]
            chosen, wanted = (options.get(group, "none") for options in self.options)
            if group in self.off and chosen != wanted:
                differences[group] = chosen, wanted
            elif group == name or group not in self.off:
                differences[name] = self.trained[name], self.recipe.get(name, "none")
        return differences


def find(table: Table, results: Results) -> dict[Cell, tuple[list[RunFolder], str]]:
    """The reduced runs of each cell that has some, and in which settings their family is not the paper's recipe.

    A cell has none if another one has the same settings but for the optimiser's and the evaluation's, nor has a point
    of a design.
    """
    of_cells: dict[Cell, tuple[list[RunFolder], str]] = {}
    for members in _compared(list(_members(table, results))):
        names = {name for member in members for name in member.trained}
        names = {name for name in names if len({m.trained[name] for m in members if name in m.trained}) > 1}
        family = max((_family(member, members, sorted(names)) for member in members), key=_rank)
        of_cells |= {member.cell: (member.runs, _footnote(family)) for member in family}
    return of_cells


def _compared(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Members in groups: the rows that share a dataset, or share one with a row that does, are in one group."""
    left = list(members)
    while left:
        rows, datasets = {left[0].cell.label}, set[str]()
        while group := [m for m in left if m.cell.label in rows or m.cell.settings.get("dataset", "") in datasets]:
            before = len(rows) + len(datasets)
            rows |= {member.cell.label for member in group}
            datasets |= {member.cell.settings.get("dataset", "") for member in group}
            if len(rows) + len(datasets) == before:
                break
        left = [member for member in left if member not in group]
        yield group


def _family(first: Member, members: Sequence[Member], names: Sequence[str]) -> list[Member]:
    """The members that can be together with one of them: one for each cell at most."""
    family = list(members)
    for name in names:
        values = {member.trained[name] for member in family if name in member.trained}
        values = {first.trained[name]} if name in first.trained else values
        possible = [[m for m in family if m.trained.get(name, value) == value] for value in sorted(values)]
        if name not in first.off:
            possible.append([member for member in family if name not in member.off])
        family = max(possible, key=len)
    return family


def _rank(family: Sequence[Member]) -> tuple[int, int, int, float]:
    """The better of two families fills more cells, has more runs, is nearer to the recipe, was trained for longer."""
    off = set[str]().union(*(member.off for member in family))
    epochs = max(float(member.trained.get("epochs", 0)) for member in family)
    return len(family), sum(len(member.runs) for member in family), -len(off), epochs


def _footnote(family: Sequence[Member]) -> str:
    """The settings in which a family is not the recipe, network and data first, each with what the recipe has."""
    differences = [member.differences() for member in family]
    names = dict.fromkeys(name for of_member in differences for name in of_member)
    order = {name: number for number, name in enumerate(FIRST)}
    named = []
    for name in sorted(names, key=lambda name: (order.get(name.partition(".")[0], len(FIRST)), name)):
        trained, recipe = zip(*(of_member[name] for of_member in differences if name in of_member), strict=True)
        named.append(f"{name}={'/'.join(dict.fromkeys(trained))}, not {'/'.join(dict.fromkeys(recipe))}")
    more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
    return f"not the paper's recipe: {'; '.join(named[:NAMED] + more)}" if named else ""


def _members(table: Table, results: Results) -> Iterator[Member]:
    """The reduced runs of the cells, those with the same settings together."""
    axes = {cell: table.axes(cell) for cell in table.cells if cell.available}
    single = [cell for cell in axes if "scale" not in cell.settings]
    single = [cell for cell in single if not any(axes[o] == axes[cell] and o.overrides != cell.overrides for o in axes)]
    cells = {cell: runs for cell in single if (runs := results.agreeing({**axes[cell], "scale": "reduced"}))}
    for cell, config in results.composed(list(cells)).items():
        evaluator, members = cell.metric.partition("/")[0], dict[str, Member]()
        recipe = _settings(config, evaluator, config["evaluate"].get(evaluator))
        images = config["dataset"].get("train_images")
        if images is not None:
            recipe["dataset.train_images"] = str(images - sum(config["dataset"].get("held_out") or ()))
        for run in cells[cell]:
            last = (entry for entry in entries(run) if entry["epochs"] == run.config.get("epochs"))
            nodes = (entry["settings"] for entry in last if entry["evaluator"] == evaluator)
            settings = _settings(run.config, evaluator, next(nodes, None))
            options = run.config.get("choices") or {}, config["choices"]
            if _of_cell(table.varying | {"dataset"}, options, settings, recipe):
                members.setdefault(text(settings), Member(cell, [], settings, recipe, options)).runs.append(run)
        yield from members.values()


def _of_cell(names: set[str], options: Options, trained: Settings, recipe: Settings) -> bool:
    """Whether a run has the settings that distinguish a cell in its table, and the classes of its objective."""
    chosen, wanted = options
    keys = {"batch_size.size" if name == "batch_size" else name for name in names}
    same = (chosen.get(k, wanted[k]) == wanted[k] if k in wanted else trained.get(k) == recipe.get(k) for k in keys)
    return all(same) and all(trained.get(name) == recipe.get(name) for name in OBJECTIVE)


def _settings(config: Mapping[str, Any], evaluator: str, settings: Mapping[str, Any] | None) -> Settings:
    """All settings that a result depends on, without seeds: those of the training, and of the evaluator."""
    flat: dict[str, Any] = {}
    nodes = {k: v for k, v in config.items() if k not in NOT_IN_RUN_ID | {"scale", "plugins", "diagnostics"}}
    for group, node in {**nodes, f"evaluate.{evaluator}": settings}.items():
        if not isinstance(node, Mapping):
            flat[group] = node
            continue
        hidden = {*LEFT_OUT.get(group.partition(".")[0], ()), *OWN, "content", "held_out", "_target_"}
        flat |= {f"{group}.{key}": value for key, value in node.items() if key not in hidden - {"train_images"}}
        if "_target_" in node:
            flat[group] = str(node["_target_"]).rpartition(".")[2]
    plain = {name for name, value in NOT_HASHED.items() if name in flat and flat[name] == value}
    kept = {k: v for k, v in flat.items() if not k.endswith("seed") and k not in plain}
    return {name: value if isinstance(value, str) else text(value) for name, value in kept.items()}
