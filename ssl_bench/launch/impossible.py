"""The runs of a grid that cannot be: what is said of them, and whether they are left out.

``skip=impossible`` on the command line of a grid leaves them out. It is no key of a configuration.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

from ssl_bench.errors import ConfigError

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
    groups: dict[str, list[int]] = {}
    for number, error in refused.items():  # what to set is the same for several values
        groups.setdefault(str(error).removeprefix(_head(error)), []).append(number)
    every, found = _values(runs), []
    for remedy, numbers in groups.items():
        values = _values([runs[number] for number in numbers])
        named = {key: texts for key, texts in values.items() if len(texts) < len(every[key])}
        names = " ".join(f"{key}={_listed(list(texts))}" for key, texts in named.items())
        heads = {number: _head(refused[number]) for number in numbers}
        key = heads[numbers[0]].partition("=")[0]
        if key in [*named][-1:] and all(head.removesuffix(": ") in runs[n] for n, head in heads.items()):
            text = f"{names}: {remedy}"  # the last name is the head
        else:
            reason = f"{heads[numbers[0]]}{remedy}"
            text = f"{names} ({reason})" if names else reason
        found.append((len(numbers), text))
    return found


def _head(error: ConfigError) -> str:
    """``key=value: `` at the beginning of a refusal; empty if it has another form."""
    match = re.match(r"[\w./]+=\S*?: ", str(error))
    return match[0] if match else ""


def _values(runs: Sequence[Sequence[str]]) -> dict[str, dict[str, None]]:
    """The values of each key in some runs, in their order."""
    found: dict[str, dict[str, None]] = {}
    for override in itertools.chain(*runs):
        key, _, value = override.partition("=")
        found.setdefault(key, {})[value] = None
    return found


def _listed(texts: Sequence[str]) -> str:
    return ",".join([*texts[:NAMED_VALUES], *(["..."] if len(texts) > NAMED_VALUES else [])])
