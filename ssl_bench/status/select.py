"""Which runs ``ssl-bench status`` shows, and in which order: ``--where KEY=VALUE`` and ``--sort KEY``.

A key is ``state``, ``folder``, ``label``, ``epoch``, ``speed``, a metric such as ``knn/top1``, a group such as ``loss``
or a key of the configuration such as ``optimizer.lr``.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from ssl_bench.errors import ConfigError
from ssl_bench.status.entries import URGENT, Entry
from ssl_bench.status.labels import as_override
from ssl_bench.status.runs import SEED

Value = str | float | None
Read = Callable[[Entry, str], Value]  # the value of a key in an entry with a label; None if it has none
FIELDS: Mapping[str, Read] = {
    "state": lambda entry, label: entry.state.value,
    "folder": lambda entry, label: entry.run.path if entry.run else None,
    "label": lambda entry, label: label,
    "epoch": lambda entry, label: entry.run.metrics.epoch if entry.run else None,
    "speed": lambda entry, label: entry.run.metrics.speed if entry.run else None,
}


class RunFilter:
    """Filters and sorts entries.

    Args:
        where: conditions ``KEY=VALUE``, which must all hold. A value may be several, separated by commas: any of them.
        sort: a key; ``-KEY`` reverses the order. States are sorted by urgency, numbers come before text, and what has
            no value comes last. The highest value of a metric comes first.

    Raises:
        ConfigError: a condition without ``=``.
    """

    def __init__(self, where: Sequence[str], sort: str | None) -> None:
        for condition in where:
            if "=" not in condition:
                raise ConfigError(f"--where {condition}: set it to KEY=VALUE, such as loss=dcl or state=failed")
        self._where, self._sort = [condition.partition("=")[::2] for condition in where], sort
        self.conditions = bool(where or sort)

    def __call__(self, entries: Sequence[Entry], labels: Sequence[str]) -> tuple[list[Entry], list[str]]:
        """Return the selected entries and their labels.

        Raises:
            ConfigError: no entry has a key.
        """
        pairs = list(zip(entries, labels, strict=True))
        reads = [(_reader("--where", key, entries), wanted) for key, wanted in self._where]
        kept = [pair for pair in pairs if all(_equal(read(*pair), wanted) for read, wanted in reads)]
        if self._sort:
            key = self._sort.removeprefix("-")
            read = _reader("--sort", key, entries)
            metric = any(key in entry.best for entry in entries)
            order = {state.value: place for place, state in enumerate(URGENT)} if key == "state" else {}
            known = [
                (_order(order.get(str(value), value)), pair) for pair in kept if (value := read(*pair)) is not None
            ]
            known.sort(key=lambda ranked: ranked[0], reverse=self._sort.startswith("-") != metric)
            kept = [pair for _, pair in known] + [pair for pair in kept if read(*pair) is None]
        return [entry for entry, _ in kept], [label for _, label in kept]


def _reader(flag: str, key: str, entries: Sequence[Entry]) -> Read:
    """The function that reads a key.

    Raises:
        ConfigError: no entry has the key.
    """
    if key in FIELDS or not entries:
        return FIELDS.get(key, lambda entry, label: None)
    metrics = dict.fromkeys(metric for entry in entries for metric in entry.best)
    if key in metrics:
        return lambda entry, label: entry.best.get(key)
    configs = {entry.run.config.key: entry.run.config for entry in entries if entry.run}
    names, found = set[str](), dict[str, str]()  # the option of a group comes before a key of the same name
    for config_key, config in configs.items():
        for path, value in sorted(config.settings.items(), key=lambda setting: setting[0][0] == "choices"):
            name = path[1] if path[0] == "choices" and len(path) == 2 else ".".join(path)
            names.add(name)
            found |= {config_key: value} if name == key else {}
    overrides = {o.lstrip("+").partition("=")[0] for entry in entries if not entry.run for o in entry.overrides or ()}
    if not found and key not in overrides:
        from ssl_bench.config.build import near

        known = [*FIELDS, *metrics, *names, *overrides]
        raise ConfigError(
            f"{flag} {key}: no run has this key{near(key, known)}; set it to a field, a metric, a group or a key"
        )

    def read(entry: Entry, label: str) -> Value:
        if entry.run is None:
            own = (o.lstrip("+").partition("=") for o in entry.overrides or ())
            return next((value for name, _, value in own if name == key), None)
        value = found.get(entry.run.config.key)
        return None if value is None else as_override((entry.run.seed or "null") if value == SEED else value)

    return read


def _equal(value: Value, wanted: str) -> bool:
    """Whether a value is the wanted one, or one of several that are separated by commas."""
    if value is None:
        return False
    options = [wanted, *re.split(r",(?![^\[({]*[\])}])", wanted)]  # a comma inside of brackets separates nothing
    return any(_plain(str(value)) == _plain(option) or _same_number(value, option) for option in options)


def _same_number(value: str | float, wanted: str) -> bool:
    try:
        return float(value) == float(wanted)
    except ValueError:
        return False


def _plain(text: str) -> str:
    """Without the blanks and quotes in which a list may be written in several ways."""
    return re.sub(r"[\s'\"]", "", text)


def _order(value: str | float) -> tuple[int, float, str]:
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, str(value)
