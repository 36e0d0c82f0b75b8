"""The runs of a grid that cannot be: what is said of them, and whether they are left out.

``skip=impossible`` on the command line of a grid leaves them out. It is no key of a configuration.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence

from ssl_bench.errors import ConfigError, InvalidValue, printable

SKIP = "skip=impossible"
NAMED, NAMED_VALUES = 3, 4  # reasons in the sentence that refuses a grid, and values of a key


def taken_skip(overrides: list[str]) -> bool:
    """Whether ``skip=impossible`` is among ``overrides``, from which it is taken out.

    Raises:
        ConfigError: ``skip`` has another value.
    """
    given = [override for override in overrides if override.partition("=")[0] == "skip"]
    for override in given:
        if override != SKIP:
            raise ConfigError(f"{override}: set skip to impossible, which leaves out runs that cannot be")
    overrides[:] = [override for override in overrides if override not in given]
    return bool(given)


def left(
    runs: Sequence[Sequence[str]], refused: Mapping[int, ConfigError], skip: bool, what: str = "runs"
) -> list[int]:
    """The numbers of the runs of a grid that can be; the others are printed with their reasons.

    Args:
        runs: overrides of each run.
        refused: why a run cannot be, by its number.
        skip: leave them out.
        what: the word for the runs.

    Raises:
        ConfigError: some cannot be, and they are not to be left out, or there are no others.
    """
    if refused:
        reasons = explain(runs, refused)
        head, more = f"{len(refused)} of {len(runs)} {what} cannot be", sum(count for count, _ in reasons[NAMED:])
        if not skip or len(refused) == len(runs):
            several = len(reasons) > 1
            texts = [f"{count} with {text}" if several else text for count, text in reasons[:NAMED]]
            texts += [f"{more} more"] if more else []
            texts += [f"{SKIP} leaves them out"] if len(refused) < len(runs) else []
            raise ConfigError(f"{head}: {'; '.join(texts)}")
        print(f"{head} and are left out:", *(f"  {count} with {text}" for count, text in reasons), sep="\n", flush=True)
    return [number for number in range(len(runs)) if number not in refused]


def explain(runs: Sequence[Sequence[str]], refused: Mapping[int, ConfigError]) -> list[tuple[int, str]]:
    """For each reason, how many runs it refuses, and a text of the values that these runs have and of the reason.

    A key is named if these runs have only some of the values that the grid gives it.
    """
    groups: dict[object, list[int]] = {}
    for number, error in refused.items():  # what to set is the same for several values
        reason = (error.key, error.remedy) if isinstance(error, InvalidValue) else str(error)
        groups.setdefault(reason, []).append(number)
    every = _values(runs)
    return [(len(group), _text([runs[n] for n in group], refused[group[0]], every)) for group in groups.values()]


def _text(runs: Sequence[Sequence[str]], error: ConfigError, every: Mapping[str, Collection[str]]) -> str:
    """The values that distinguish some runs, of ``every`` value by its key, and why the runs cannot be."""
    named = {key: list(texts) for key, texts in _values(runs).items() if len(texts) < len(every[key])}
    names = printable(" ".join(f"{key}={_listed(texts)}" for key, texts in named.items()))
    if isinstance(error, InvalidValue) and error.key in [*named][-1:]:  # the last name says the refused value
        return printable(f"{names}: set {error.key} to {error.remedy}")
    return f"{names} ({error})" if not str(error).startswith(names) else str(error)


def _values(runs: Sequence[Sequence[str]]) -> dict[str, dict[str, None]]:
    values: dict[str, dict[str, None]] = {}
    for override in itertools.chain(*runs):
        key, _, value = override.partition("=")
        values.setdefault(key, {})[value] = None
    return values


def _listed(texts: Sequence[str]) -> str:
    return ",".join([*texts[:NAMED_VALUES], *(["..."] if len(texts) > NAMED_VALUES else [])])
