"""``ssl-bench report [WORD ...]``: runs, plots and papers' tables as one HTML file."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences, refuse
from ssl_bench.commands.words import placed
from ssl_bench.disk import temporary
from ssl_bench.errors import require
from ssl_bench.report import html
from ssl_bench.report.collect import Collector

PAUSE = 5.0  # seconds between two looks at the runs


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write the file, with ``--watch`` again and again until Ctrl-C; return 0, or 2 for wrong arguments."""
    parser = Parser("report", "Show runs, plots and the papers' tables in a browser.")
    parser.add_words()
    parser.add_outputs()
    text = "an .html file (default: report.html)"
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help=text)
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    watch = "write it again when a run has changed, until Ctrl-C; a browser that shows it follows"
    parser.add_argument("--watch", action="store_true", help=watch)
    options = parser.read_words(arguments)
    outputs, words = placed(options.words, options.outputs)
    collector, path = Collector(outputs, words), options.out
    require(path.suffix == ".html", "--out", path, "an .html file, which a browser prints to PDF")
    require(path.parent.is_dir(), "--out", path, f"a file in a folder that exists: there is no {path.parent}")
    data = collector.collect(path.parent.absolute())
    for sentence in collector.refusals():
        refuse(sentence)
    temporary.remove(path.parent)
    files.write_text(path, html.render(data, options.watch))
    print(f"{path}: {len(data['runs'])} runs, {path.stat().st_size / 1e6:.1f} MB", flush=True)
    if options.open:
        webbrowser.open(path.absolute().as_uri())
    if options.watch:
        _watch(collector, path, data)
    return 0


def _watch(collector: Collector, path: Path, data: Mapping[str, Any]) -> None:
    """Write the file again when something of its data but the time has changed, and at Ctrl-C as one that stays."""
    print("it is written again when a run has changed, until Ctrl-C", flush=True)
    try:
        while True:
            time.sleep(PAUSE)
            former, data = data, collector.collect(path.parent.absolute())
            if {**data, "made": former["made"]} != former:
                files.write_text(path, html.render(data, live=True))
    except KeyboardInterrupt:
        files.write_text(path, html.render(data))
