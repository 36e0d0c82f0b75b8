"""``ssl-bench replicate eqco/toy``: measure the committed numbers of a claim or a table again on this machine.

The runs of the committed seeds are trained into ``paths.outputs`` as ``reproduce`` trains them, unless they are there.
Each number is compared with the committed one, and ``replications/<who>.json`` keeps both, to be sent to the project.
"""

import re
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ssl_bench.commands import reproduce
from ssl_bench.commands.arguments import Parser, in_sentences, show_progress
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers import replication, tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.plan import Request, plan
from ssl_bench.papers.selection import HELP


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Train and compare.

    Returns:
        0: all numbers agree. 1: one does not, or a run failed. 2: wrong arguments, or images are missing. 128 + n:
        stopped by signal n.
    """
    parser = Parser("replicate", "Measure the committed numbers of a claim again, and compare.")
    parser.add_argument("names", nargs="+", metavar="CLAIM", help="such as eqco/toy, or a table such as losses/rate")
    parser.add_argument("--who", default=socket.gethostname(), help="names the record; by default the host's name")
    parser.add_config_dir()
    parser.epilog = (
        f"{HELP} seed=20,21 are the only seeds then; hydra/launcher=local, paths.data and paths.outputs too."
    )
    options = parser.read(arguments)
    remedy = "letters, digits and any of . _ @ -"
    require(re.fullmatch(r"[\w@-][\w.@-]*", options.who) is not None, "--who", options.who, remedy)
    selection = replication.Committed.read(options.names, False, options.overrides, options.config_dir)
    # First what is recorded during training: claims may share a run, and the others are evaluated after it.
    cells = {name: [c for table in tables.find(name, selection.papers) for c in table.cells] for name in options.names}
    names = sorted(cells, key=lambda name: not any("@" in cell.metric for cell in cells[name]))
    selection = replace(selection, names=tuple(names))
    request = replace(Request.read(selection), seeds=())
    if request.scale != "full":
        raise ConfigError(f"{' '.join(request.overrides)}: leave it out: it changes what is measured")
    chosen = [(table, selection.cells(table)) for table in selection.tables()]
    planned = plan(request, show_progress)
    todo = [runs for runs in planned if runs.missing]
    if sentences := list(reproduce.missing_data(todo)):
        raise ConfigError(sentences[0])
    reproduce.summarise(request, planned)
    if code := reproduce.train(request, todo):
        return code
    results = Results(selection.outputs, [c for _, cells in chosen for c in cells], folder=selection.folder)
    content, agree = dict[str, Any](), True
    for table, asked in chosen:
        numbers = replication.compared(table, asked, results)
        content[table.name] = replication.record(table, numbers, results)
        equal, agreeing = (sum(getattr(each, name) for each in numbers) for name in ("equal", "agrees"))
        rest = f", {agreeing - equal} within the bound" * (agreeing > equal)
        print(f"{table.name}: {equal} of {len(numbers)} equal{rest}")
        for each in numbers:
            if not each.agrees:
                place = f"{each.cell.label} | {each.cell.column} | {each.cell.metric}, seed {each.seed}"
                found = "not measured" if each.found is None else f"{each.found:.6g} found"
                print(f"  {place}: {each.committed:.6g} committed, {found}, bound {each.bound:.1e}")
        if "verdict" in content[table.name]:
            print(
                "  verdict here: {verdict}; by the committed numbers: {verdict_committed}".format(**content[table.name])
            )
        agree &= agreeing == len(numbers)
    path = Path("replications", f"{options.who}.json")
    replication.write(path, options.who, content)
    print(path)
    return int(not agree)
