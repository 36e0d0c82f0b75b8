"""``ssl-bench report [OUTPUTS | NAME ...]``: runs, plots and papers' tables as one HTML file, or live."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences, refuse
from ssl_bench.errors import ConfigError, require
from ssl_bench.report import html, pdf, serve
from ssl_bench.report.collect import Collector

EPILOG = """A word that is a folder is the results folder; any other word selects runs: a run_id, or a name, also of
the runs that its grids found done under another one. paths.outputs=FOLDER sets the results folder too."""


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write the file, or serve it until Ctrl-C; return 0, or 2 for wrong arguments."""
    parser = Parser("report", "Show runs, plots and the papers' tables in a browser.")
    parser.add_argument("words", nargs="*", metavar="OUTPUTS|NAME", help="results folder (default: outputs), or runs")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="an .html or .pdf file (default: report.html)",
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.add_argument("--watch", action="store_true", help="serve it on this machine, always as the files are now")
    parser.add_argument(
        "--host", default=serve.LOCAL, metavar="ADDRESS", help="serve on another address than 127.0.0.1"
    )
    parser.epilog = EPILOG
    options = parser.read(arguments)
    collector = _collector(options.words, options.overrides)
    if options.watch:
        return _serve(collector, options.host, options.open)
    require(options.host == serve.LOCAL, "--host", options.host, "an address together with --watch only")
    return _write(collector, options.out, options.open)


def _collector(words: Sequence[str], overrides: Sequence[str]) -> Collector:
    """The runs that the words and ``paths.outputs`` name."""
    folders = [Path(word) for word in words if Path(word).is_dir()]
    for override in overrides:
        key, _, value = override.partition("=")
        if key != "paths.outputs":
            raise ConfigError(f"{override}: set paths.outputs, the only key that a report reads")
        folders.append(files.given_path(value))
    if len(folders) > 1:
        raise ConfigError(f"{folders[1]} and {folders[0]} are two results folders: name one")
    outputs = folders[0] if folders else Path("outputs")
    if not outputs.is_dir():
        raise ConfigError(f"there is no folder {outputs}: name the folder that paths.outputs was set to")
    return Collector(outputs, [word.strip("/") for word in words if not Path(word).is_dir()])


def _write(collector: Collector, path: Path, shown: bool) -> int:
    require(path.suffix in (".html", ".pdf"), "--out", path, "an .html or a .pdf file")
    require(path.parent.is_dir(), "--out", path, f"a file in a folder that exists: there is no {path.parent}")
    data = collector.collect(path.parent.absolute())
    for sentence in collector.refusals():
        refuse(sentence)
    write = files.write_text if path.suffix == ".html" else lambda path, page: pdf.write(page, path)
    write(path, html.render(data))
    print(f"{path}: {len(data['runs'])} runs, {path.stat().st_size / 1e6:.1f} MB")
    if shown:
        webbrowser.open(path.absolute().as_uri())
    return 0


def _serve(collector: Collector, address: str, shown: bool) -> int:
    collector.collect()  # a wrong name is refused before anything is served
    try:
        server = serve.ReportServer(collector, address)
    except OSError as error:
        raise ConfigError(f"--host={address}: {error.strerror}; set --host to an address of this machine") from error
    with server:
        print(f"{server.url} shows {collector.outputs}, until Ctrl-C", flush=True)
        if shown:
            webbrowser.open(server.url_to_open)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
