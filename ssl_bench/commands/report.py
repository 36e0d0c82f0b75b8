"""``ssl-bench report [WORD ...]``: runs, plots and comparisons as one HTML file.

``--json`` prints the data that the file is made of and writes no file. Numbers are numbers; null is unknown.

    outputs, made, left     results folder; when this was collected, in seconds since 1970; seconds until all is done
    states                  that a run may have, the most urgent first
    keys, common            names of the ``values`` of each run; settings that all runs have
    shown, facts            those of ``keys`` on which results depend, and that are facts of ``results.json``
    metrics, meanings       names, the main ones first; of each, and of curves: a share in [0, 1], 1 or -1 for better
                            if higher or lower, and whether it is a main one
    runs                    an object for each:
        id, folder              its place below the results folder, which ends with its run_id; null if not yet there
        state, reason           one of ``states``; why it is so
        label, values           the settings that distinguish it; one for each of ``keys``
        metrics, not_finite     {metric: value}, accuracies in [0, 1]; names of those that are NaN or infinite
        epoch, epochs, ...      and its speed (images per second), seconds, command, warnings, hardware, versions, log
    curves                  for each run {name: [steps, values, number of rows, number of rows without a finite value]}
    groups                  an object for each experiment: its name, the places of its ``runs`` in the list of runs, and
        left_out                {metric: sentences on the runs that have no part in its means and comparisons}
        matters                 {metric: what ``compare --format json`` prints, and texts of its table; without rows
                                the title says why runs cannot be compared}
        verdicts                {metric: [the same of ``compare --by``, for each setting]}
        seeds                   {curve: for each line its means over seeds, and their deviation, pooled over epochs}
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences, output
from ssl_bench.errors import ConfigError, require
from ssl_bench.report import html
from ssl_bench.report.collect import collect

PAUSE, RARELY = 5.0, 10  # seconds between two scans of the runs, or ten times as long as a scan takes


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write the file, with ``--watch`` again and again until Ctrl-C; return 0, or 2 for wrong arguments."""
    parser = Parser("report", "Show runs, plots and comparisons in a browser.")
    parser.add_words()
    parser.add_argument("--out", type=Path, metavar="FILE", help="an .html file (default: report.html)")
    parser.add_argument("--watch", action="store_true", help="write it again when a run has changed, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print the data of the file, and write none")
    options = parser.read_words(arguments)
    if options.json:
        if options.out or options.watch:
            raise ConfigError("--json writes no file: leave --out and --watch out")
        data = collect(options.words, options.outputs, Path.cwd())
        data["runs"] = [{n: of for n, of in run.items() if n != "pictures"} for run in data["runs"]]  # files as text
        print(json.dumps(data, indent=2, allow_nan=False))
        return 0
    path = output(options.out, "report.html", b": ssl_bench report</title>")
    require(path.suffix == ".html", "--out", path, "an .html file, which a browser prints to PDF")
    data = collect(options.words, options.outputs, path.parent.absolute())
    files.write_text(path, html.render(data, options.watch))
    print(f"{path}: {len(data['runs'])} runs, {path.stat().st_size / 1e6:.1f} MB", flush=True)
    if options.watch:
        _watch(options, path, data)
    return 0


def _watch(options: Namespace, path: Path, data: dict[str, Any]) -> None:
    """Write the file again when something of its data but the time has changed, and at Ctrl-C as one that stays."""
    print("it is written again when a run has changed, until Ctrl-C", flush=True)
    took = 0.0
    try:
        while True:
            time.sleep(max(PAUSE, RARELY * took))
            began, former = time.monotonic(), data
            data = collect(options.words, options.outputs, path.parent.absolute())
            if {**data, "made": former["made"]} != former:
                files.write_text(path, html.render(data, live=True))
            took = time.monotonic() - began
    except KeyboardInterrupt:
        files.write_text(path, html.render(data))
