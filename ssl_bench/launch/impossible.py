"""The runs of a grid that cannot be: what is said of them, and whether they are left out.

``skip=impossible`` on the command line of a grid leaves them out. It is no key of a configuration.
"""

from collections.abc import Mapping, Sequence

from ssl_bench.errors import ConfigError, InvalidValue, printable

SKIP = "skip=impossible"
NAMED = 3  # reasons in the sentence that refuses a grid


def taken_skip(overrides: list[str]) -> bool:
    """Whether ``skip=impossible`` is among ``overrides``, from which it is taken out.

    Raises:
        ConfigError: ``skip`` has another value.
    """
    given = [override for override in overrides if override.partition("=")[0] == "skip"]
    if wrong := [override for override in given if override != SKIP]:
        raise ConfigError(f"{wrong[0]}: set skip to impossible, which leaves out runs that cannot be")
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
        head = f"{len(refused)} of {len(runs)} {what} cannot be"
        if not skip or len(refused) == len(runs):
            texts = reasons[:NAMED] + [f"{len(reasons) - NAMED} other reasons"] * (len(reasons) > NAMED)
            texts += [f"{SKIP} leaves them out"] if len(refused) < len(runs) else []
            raise ConfigError(f"{head}: {'; '.join(texts)}")
        print(f"{head} and are left out:", *(f"  {text}" for text in reasons), sep="\n", flush=True)
    return [number for number in range(len(runs)) if number not in refused]


def explain(runs: Sequence[Sequence[str]], refused: Mapping[int, ConfigError]) -> list[str]:
    """A text for each reason: what distinguishes the first run that it refuses, the reason, and how many others."""
    groups: dict[object, list[int]] = {}
    for number, error in refused.items():  # what to set is the same for several values
        reason = (error.key, error.remedy) if isinstance(error, InvalidValue) else str(error)
        groups.setdefault(reason, []).append(number)
    common = set(runs[0]).intersection(*runs)
    return [
        _text([word for word in runs[of[0]] if word not in common], refused[of[0]], len(of)) for of in groups.values()
    ]


def _text(words: Sequence[str], error: ConfigError, count: int) -> str:
    named, more = printable(" ".join(words)), f" (and {count - 1} more)" * (count > 1)
    return f"{named}: {str(error).removeprefix(f'{named}: ')}{more}" if named else f"{error}{more}"
