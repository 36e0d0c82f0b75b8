"""The finished runs that words on a command line select."""

from collections.abc import Sequence
from pathlib import Path

from ssl_bench.errors import ConfigError
from ssl_bench.results.former_select import chosen, ended


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
    entries, outputs = chosen(words, given)
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
