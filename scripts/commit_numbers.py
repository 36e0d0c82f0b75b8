"""Write the numbers of finished runs to ``ssl_bench/papers/measured/``, and the page and figures of that folder.

    python scripts/commit_numbers.py                                  # the page and the figures
    python scripts/commit_numbers.py eqco/bound paths.outputs=FOLDER  # the numbers of a table or claim before

A table's file has every number with its seed and run_id, the command, and of the runs
the commits at their starts (+: with changed files), times, hardware, versions and seconds. The run_id leaves out the
hash of the prepared images, so that it differs from the folder's name. Of a file that is there, the ``note``, the
``errata`` and the numbers of seeds that the table no longer names are kept. A claim's file has the hash of its criteria
too; they must be those of the commits at which its runs began.

Committed numbers whose runs are on another machine stay, if the table still asks for their training.
"""

import argparse
import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.compositions import Composition, Request, compositions
from ssl_bench.config.identity import recipe_id
from ssl_bench.papers import measurements, tables, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell, Table
from ssl_bench.papers.claims import ClaimVerdict, PaperClaim
from ssl_bench.papers.fill import Filled, fill
from ssl_bench.papers.selection import Selection
from ssl_bench.papers.sheets import figure
from ssl_bench.record.printing import markdown

VERSIONS = ("ssl_bench", "python", "torch", "torchvision", "timm", "numpy")
JOINED = "eqco/bound"  # of five claims about the same networks
Place = tuple[Any, ...]  # row, column, metric and seed of a number
HEAD = """# Measured with this package

Verdicts on sentences of the papers, with the figures behind them. The numbers are in the JSON files beside this page,
each with its seed, and with the command, commit, hardware and versions of its runs. `ssl-bench table NAME` prints them
as "project", with the errata; `ssl-bench figure NAME` draws them. `python scripts/commit_numbers.py NAME` writes the
file of a table from its runs, and this page and its figures from all files.
[How claims are judged](../README.md#claims). Where a question was wrong, the errata say what was wrong, and new seeds
decide.

"""


def record(table: Table, results: Results) -> dict[str, Any]:
    """The content of a table's file from its finished runs, without cells if there are none."""
    cells: list[dict[str, Any]] = []
    runs: dict[str, Mapping[str, Any]] = {}
    for cell in asked(table):
        by_seed = {run.seed: run for run in results.of_cell(cell)}
        found = results.values(cell)
        for seed in sorted(set(found) & set(cell.seeds)):
            run, number = by_seed[seed], found[seed]
            runs[run.folder.name] = content = run.results
            place = {"row": cell.label, "column": cell.column, "metric": cell.metric}
            six_digits = float(f"{number:.6g}")
            cells.append(place | {"value": six_digits, "seed": seed, "run_id": recipe_id(run.config)})
            cells[-1]["seconds"] = round(content["seconds"])
    earlier, now = measurements.read(table), {seed for cell in table.cells for seed in cell.seeds}
    environments = [content.get("environment", {}) for content in runs.values()]
    commits = sorted({str(git) for each in environments for git in (each.get("git"), *each.get("git_later", []))})
    hardware = (f"{each.get('device')}, threads of a run: {each.get('threads')}" for each in environments)
    return {
        "table": table.name,
        "command": f"ssl-bench reproduce {table.name}",
        **({"errata": earlier["errata"]} if "errata" in earlier else {}),
        **({"criteria": rules(table)} if isinstance(table, PaperClaim) else {}),
        "commit": _different(map(_short, commits)),
        "started": min(filter(None, (each.get("started") for each in environments)), default=None),
        "finished": max(filter(None, (each.get("finished") for each in environments)), default=None),
        "hardware": _different(hardware),
        **{name: _different(str(each.get(name)) for each in environments) for name in VERSIONS},
        "seconds": round(sum(content["seconds"] for content in runs.values())),
        "note": earlier.get("note", []),
        "cells": cells and [*(cell for cell in earlier.get("cells", []) if cell["seed"] not in now), *cells],
    }


def asked(table: Table) -> tuple[Cell, ...]:
    """The cells of a table, and further metrics of their runs that the criteria of a claim ask for."""
    criteria = table.criteria if isinstance(table, PaperClaim) else ()
    return tuple(dict.fromkeys((*table.cells, *(cell for each in criteria for cell in (*each.of, *each.minus)))))


def rules(claim: PaperClaim) -> str:
    """Hash of a claim's criteria without controls and of their seeds, in any order and whatever they are called."""
    contents = [
        [criterion.limit, criterion.statistic, criterion.seeds]
        + [[[cell.label, cell.column, cell.metric] for cell in cells] for cells in (criterion.of, criterion.minus)]
        for criterion in claim.criteria
        if not criterion.control
    ]
    return hashlib.sha256("\n".join(sorted(map(json.dumps, contents))).encode()).hexdigest()[:10]


def _short(commit: str) -> str:
    """A commit in seven digits, with its mark of changed files."""
    return commit[:7] + "+" * commit.endswith("+")


def _changed(claim: PaperClaim, commits: Sequence[str]) -> str:
    """The first of the commits at which a claim had other criteria; empty without one. Says which ones are not here."""
    path = claim.source
    for commit in commits:
        command = ["git", "-C", str(path.parent), "show", f"{commit.rstrip('+')}:./{path.name}"]
        shown = subprocess.run(command, capture_output=True, text=True)
        if shown.returncode:
            print(f"{claim.name}: commit {commit} is not here, so its criteria are not compared")
            continue
        former = [each for each in tables.parse(shown.stdout, path)[1] if each.name == claim.name]
        if rules(claim) not in map(rules, former):
            return commit
    return ""


def _different(texts: Iterable[str]) -> str:
    return "; ".join(sorted(set(texts)))


def joined(table: Table, content: dict[str, Any]) -> dict[str, Any]:
    """The content with the committed numbers that it lacks: their runs may be on another machine.

    Raises:
        ValueError: the table asks for another training than theirs.
    """
    asked = {(cell.label, cell.column, cell.metric, seed): cell for cell in table.cells for seed in cell.seeds}
    composed = compositions([cell.overrides for cell in table.cells if cell.available])
    here, earlier = {_place_of(cell) for cell in content["cells"]}, measurements.read(table)
    kept = [each for each in earlier.get("cells", []) if _place_of(each) in asked.keys() - here]
    other = [each for each in kept if each.get("run_id") != _training(composed, asked[_place_of(each)], each["seed"])]
    if other:
        path = measurements.path_of(table)
        raise ValueError(f"{len(other)} numbers of {path} are of another training: remove them, or name new seeds")
    if not kept:
        return content
    seconds = {each["run_id"]: each.get("seconds", 0) for each in kept}
    for key in ("commit", "hardware", *VERSIONS):
        content[key] = _different([*content[key].split("; "), *earlier[key].split("; ")])
    for key, extreme in (("started", min), ("finished", max)):
        content[key] = extreme(filter(None, (content[key], earlier[key])), default=None)
    content["seconds"] += sum(seconds.values())
    order = {place: number for number, place in enumerate(asked)}
    content["cells"] = sorted([*content["cells"], *kept], key=lambda cell: order.get(_place_of(cell), -1))
    return content


def _training(composed: Mapping[Request, Any], cell: Cell, seed: int) -> str | None:
    """The recipe that a cell asks for; None: it cannot be composed."""
    made = composed.get(cell.overrides)
    return recipe_id(made.config(seed)) if isinstance(made, Composition) else None


def _place_of(cell: dict[str, Any]) -> Place:
    """Where a committed number stands: row, column, metric and seed."""
    return tuple(cell[key] for key in ("row", "column", "metric", "seed"))


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a table's file, one cell a line."""
    head = json.dumps({key: value for key, value in content.items() if key != "cells"}, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(cell) for cell in content["cells"])
    path.parent.mkdir(exist_ok=True)
    files.write_text(path, f'{head},\n "cells": [\n{lines}\n ]\n}}\n')
    measurements.content.cache_clear()


def measured() -> list[Table]:
    """The claims and tables of all papers that have committed numbers."""
    everything = [t for of_paper, claims in map(tables.read, tables.paths().values()) for t in (*claims, *of_paper)]
    return [table for table in everything if measurements.read(table)]


def page() -> str:
    """The page in Markdown."""
    every = judged()
    claims = markdown(verdicts.sheet(every, False, tables.dropped()))
    return "\n".join(
        [f"{HEAD}## Claims\n\n{count(every)}\n\n{claims}", *(_section(table) for table in measured() if counted(table))]
    )


def judged() -> list[verdicts.Judged]:
    """All claims by the committed numbers."""
    return [verdicts.judge(claim, _none()) for claim in verdicts.claims_of([])]


def decided(every: Iterable[verdicts.Judged]) -> list[verdicts.Judged]:
    """The claims to which the committed numbers say yes or no."""
    return [each for each in every if each.verdict in (ClaimVerdict.SHOWN, ClaimVerdict.CONTRADICTED)]


def count(every: Sequence[verdicts.Judged]) -> str:
    """How many claims there are, and how many of them are decided."""
    found = decided(every)
    return (
        f"Of {len(every) + len(tables.dropped())} claims committed runs decide {len(found)}: "
        f"{sum(not each.claim.ours for each in found)} are sentences of the papers; {JOINED} was joined from five."
    )


def counted(table: Table) -> list[dict[str, Any]]:
    """The committed numbers of the seeds that a table names."""
    seeds = {seed for cell in table.cells for seed in cell.seeds}
    return [cell for cell in measurements.read(table)["cells"] if cell["seed"] in seeds]


def drawn(table: Table) -> bool:
    """Whether a figure has committed numbers, of the seeds that the table names."""
    return bool(table.x) and any(measurements.values(table, cell) for cell in table.cells)


def _section(table: Table) -> str:
    """A measured table: what was asked of it with the answers, its figure and its command."""
    content, parts = measurements.read(table), [f"## {table.name}"]
    if isinstance(table, PaperClaim):
        parts.append("\n".join(verdicts.judge(table, _none()).lines()[1:-2]))
    if drawn(table):
        parts.append(f"![{table.title}]({measurements.path_of(table).stem}.png)")
    hours = content["seconds"] / 3600
    time = f"{hours:.1f} hours" if hours >= 1 else f"{content['seconds'] / 60:.0f} minutes"
    made = f"`{content['command']}`: {time} on {content['hardware']}."
    return "\n\n".join([*parts, made]) + "\n"


def _known(table: Table) -> list[Filled]:
    """The cells of the rows that have a number."""
    filled = fill(table, table.cells, _none())
    rows = {each.cell.row for each in filled if each.measured or each.cell.paper is not None}
    return [each for each in filled if each.cell.row in rows]


def draw_figure(table: Table, path: Path) -> None:
    """Draw the committed numbers of a table over those of the paper."""
    filled = [each for each in _known(table) if each.measured or each.cell.paper is not None]
    drawn = figure([(table, filled)], _none())
    files.write(path, lambda file: drawn.savefig(file, format="png", dpi=110))


def _none() -> Results:
    """No runs: only committed numbers count."""
    return Results(Path("/nonexistent"), [])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="TABLE", help="and paths.outputs=FOLDER, where the runs are")
    words = parser.parse_args(arguments).words
    names = [word for word in words if "=" not in word]
    if names:
        selection = Selection.read(names, False, [word for word in words if "=" in word])
        chosen = selection.tables()
        results = Results(selection.outputs, [cell for table in chosen for cell in table.cells])
        for table in chosen:
            content = record(table, results)
            if not content["cells"]:
                parser.error(f"{table.name}: no cell has a finished run: train them with {content['command']}")
            if isinstance(table, PaperClaim) and (changed := _changed(table, content["commit"].split("; "))):
                parser.error(f"{table.name}: its runs began at {changed}, with other criteria: name new seeds")
            try:
                write(measurements.path_of(table), joined(table, content))
            except ValueError as error:
                parser.error(f"{table.name}: {error}")
    for table in measured():
        if drawn(table):
            draw_figure(table, measurements.path_of(table).with_suffix(".png"))
    files.write_text(tables.directory() / "measured" / "README.md", page())


if __name__ == "__main__":
    main()
