"""Words that select runs on a command line: those of :mod:`ssl_bench.results.select`, and tables of papers."""

from collections.abc import Sequence
from pathlib import Path

from ssl_bench.errors import ConfigError
from ssl_bench.papers import tables
from ssl_bench.results.scan import Entry
from ssl_bench.results.select import Condition, chosen, ended, located


def placed(words: Sequence[str], given: Path | None = None) -> tuple[Path, list[str]]:
    """The results folder, and the words that select in it; a table of a paper is the runs that fill it.

    Args:
        given: the results folder of ``--outputs``.

    Raises:
        ConfigError: there is no such folder, or no run fills a table.
    """
    outputs, words = located(words, given)
    return outputs, [path for word in words for path in _of_paper(word, outputs)]


def entries_of(words: Sequence[str], given: Path | None = None) -> tuple[list[Entry], Path]:
    """The entries that words select, in the order of ``ssl-bench status``, and their results folder."""
    outputs, words = placed(words, given)
    return chosen(words, outputs)


def trained(words: Sequence[str], given: Path | None = None) -> tuple[list[Path], int]:
    """The directory of the one run that words select, or those of the finished ones among several; how many are not.

    Raises:
        ConfigError: nothing is named, or none of the runs is finished.
    """
    if not words:
        raise ConfigError("no run is named: give an experiment, a run_id, a folder or a condition such as loss=dcl")
    if len(words) == 1 and (Path(words[0]) / "config.yaml").exists():
        return [Path(words[0])], 0
    if len(words) == 1 and Path(words[0]).is_absolute() and not Path(words[0]).exists():
        raise ConfigError(f"{words[0]} is no run directory: `ssl-bench status` lists them")
    entries, outputs = entries_of(words, given)
    runs = [entry.run for entry in (entries if len(entries) == 1 else ended(entries)) if entry.run]
    if not runs:
        raise ConfigError(f"{' '.join(words)}: no finished run below {outputs} has this name and these settings")
    return [run.folder for run in runs], len(entries) - len(runs)


def one_trained(word: str, given: Path | None = None) -> Path:
    """The directory of the one run that a word names.

    Raises:
        ConfigError: it names several runs, or none that is finished.
    """
    (folder, *others), _ = trained([word], given)
    if others:
        raise ConfigError(f"{word}: {1 + len(others)} runs: name one of them")
    return folder


def _of_paper(word: str, outputs: Path) -> list[str]:
    """The directories of the runs that fill a table; a word that is none stays."""
    if Condition.read(word) or word.partition("/")[0] not in tables.paths() or (outputs / word).exists():
        return [word]
    from ssl_bench.papers.cell_runs import Results

    cells = [cell for table in tables.find(word) for cell in table.cells]
    results = Results(outputs, cells)
    paths = dict.fromkeys(str(run.folder) for cell in cells for run in results.of_cell(cell))
    if not paths:
        raise ConfigError(f"{word}: no finished run below {outputs} fills a cell of it: ssl-bench reproduce {word}")
    return list(paths)
