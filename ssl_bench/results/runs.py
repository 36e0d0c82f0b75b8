"""The runs below a results folder, from their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config import identity
from ssl_bench.launch import lock
from ssl_bench.record import results
from ssl_bench.record.cache import Cache
from ssl_bench.record.claim import Owner
from ssl_bench.record.dashboard import flat_config
from ssl_bench.record.evaluations import Entry
from ssl_bench.record.follow import find_mark, finite
from ssl_bench.record.index import Index, Indexed, as_text

# What a configuration without a key stands for, by the names of settings.
UNSAID = {name: as_text(value) for name, value in identity.NOT_HASHED.items()} | {"positives": "view"}


class SharedConfig:
    """A configuration without its seed, which runs share that differ in nothing else.

    Attributes:
        content: the configuration with null in place of the seed.
        key: of the content.
        groups: the chosen option of each group.
        settings: every value as an override writes it, by the names of :mod:`ssl_bench.record.dashboard`. A
            ``batch_size`` of another size than that of its option is that size.

    A network that is not trained has those groups and settings only that its numbers depend on.
    """

    def __init__(self, content: dict[str, Any], key: str) -> None:
        self.content, self.key = content, key
        choices: dict[str, str] = content.get("choices") or {}
        self.groups = {group: option for group, option in choices.items() if self._counts(group)}

    def _counts(self, name: str) -> bool:
        """Whether a group or a key of the first level is one of the settings: evaluations belong to the numbers."""
        if name == "evaluate" or not identity.untrained(self.content):
            return name != "evaluate"
        return name in identity.read_alone(self.content) | identity.NOT_IN_RUN_ID

    @cached_property
    def own_images(self) -> str:
        """The hash of the user's own images; empty for a data set with a name."""
        node = self.content.get("dataset")
        return str(node.get("content") or "") if isinstance(node, Mapping) and identity.is_own(node) else ""

    @cached_property
    def settings(self) -> dict[str, str]:
        content = {name: value for name, value in self.content.items() if self._counts(name)}
        flat = flat_config({**content, "choices": self.groups}, {})
        if flat.get("batch_size") != f"b{(size := flat.get('batch_size.size'))}" and size is not None:
            flat["batch_size"] = size
        return {name: as_text(value) for name, value in flat.items() if value is not None or "seed" not in name}

    def setting(self, name: str) -> str | None:
        """One of the settings, or the value that counts for it in a configuration of an earlier version."""
        group, _, key = name.rpartition(".")
        if name in self.settings or name not in UNSAID or not self._counts(group or key):
            return self.settings.get(name)
        return UNSAID[name] if not group or isinstance(self.content.get(group), Mapping) else None


def settings_of(configs: Sequence[SharedConfig]) -> list[dict[str, str]]:
    """The settings of some configurations, also of those that lack a key of the others though it counts for them."""
    names = {name for config in configs for name in config.settings} & UNSAID.keys()
    unsaid = ({name: text for name in sorted(names) if (text := config.setting(name))} for config in configs)
    return [config.settings | texts for config, texts in zip(configs, unsaid, strict=True)]


@dataclass(eq=False)
class RunFolder:
    """A run's directory, as its files were when they were read.

    Attributes:
        outputs: the results folder.
        path: of the directory, relative to it.
        marks: of its files.
        began: when it was started last, in seconds of the epoch.
        shared: the configuration without its seed.
        seed: None: it has none.
        command: the command that trains it, if it was recorded.
        failure: why it failed, in one line; None: it has not failed.
        training: recipe of the training, as :func:`ssl_bench.config.identity.recipe_id` names it.
        on_disk: hashes of what it depends on beside its recipe, as far as they are known.
        run_id, seconds: of ``results.json``; ``seconds`` is the time that the whole run took. The run_id is empty if
            there are no whole results.
        numbers: by the key of what made them in ``evaluations``, then by metric; of an unfinished run the best so far.
            :class:`ssl_bench.results.numbers.Numbers` names them.
        units: what the metrics mean, as :mod:`ssl_bench.record.units` has it; of several runs one object.
        environment: what of that of ``results.json`` the bits of a result depend on.
        warnings: what the run says about its result, in sentences.
        longer: it has results of fewer epochs than it was asked for since.
        step, epoch, trained, speed, loss: of the last row of the training; ``trained`` is the time that the run has
            taken so far, in all its processes together, ``speed`` is in images per second. None: there is no row.
        watched: the last kNN accuracy that an unfinished run has measured on the way.
        evaluations: what made the numbers (:func:`ssl_bench.record.evaluations.made_by`); of several runs one object.
        changed: time of change of ``metrics.jsonl``, in seconds of the epoch.
        owner: the process that carries it out.
    """

    outputs: str
    path: str
    marks: str
    began: float
    shared: SharedConfig
    seed: int | None
    command: str | None
    failure: str | None
    training: str
    on_disk: dict[str, str]
    run_id: str
    numbers: dict[str, dict[str, float]]
    seconds: float | None
    units: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    longer: bool = False
    step: float | None = None
    epoch: float | None = None
    trained: float | None = None
    speed: float | None = None
    loss: float | None = None
    watched: float | None = None
    changed: float = 0.0
    owner: Owner | None = None

    @property
    def done(self) -> bool:
        """Whether it has whole results, perhaps of fewer epochs than it goes on to."""
        return bool(self.run_id)

    @property
    def folder(self) -> Path:
        """The directory."""
        return Path(self.outputs, self.path)

    @property
    def parent(self) -> str:
        """The directory's parent, relative to ``outputs``."""
        return self.path.rpartition("/")[0]

    def is_below(self, folder: str) -> bool:
        """Whether its directory is below a folder of the results folder."""
        return f"/{folder}/" in f"/{self.path}/"

    def is_named(self, name: str) -> bool:
        """Whether a name is that of its experiment, its run_id, or its directory or one above it."""
        return name in (self.name, self.path, self.folder.name) or self.is_below(name)

    @property
    def name(self) -> str:
        """The name of its experiment: that of the folder, which may have been renamed since the training."""
        trained, folder = str(self.config.get("name") or ""), self.folder.absolute().parent.as_posix()
        return trained if trained and f"{folder}/".endswith(f"/{trained}/") else self.parent or Path(folder).name

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, with null in place of the seed."""
        return self.shared.content

    @property
    def conditions(self) -> dict[str, Any]:
        """What the bits of its numbers depend on beside its run_id, by name."""
        return results.conditions(self.config, self.environment)

    def setting(self, name: str) -> str | None:
        """The value of a key, or the option of a group, as an override writes it."""
        if name == "seed":
            return None if self.seed is None else str(self.seed)
        if name == "name":
            return self.name
        return self.shared.setting(name)

    @property
    def end(self) -> float | None:
        """Epoch at which the training ends. With ``max_steps`` it is known after the first row."""
        epochs, max_steps = (finite(self.config, key) for key in ("epochs", "max_steps"))
        if epochs is None or max_steps is None:
            return epochs
        return min(epochs, max_steps * self.epoch / self.step) if self.step and self.epoch else None

    @property
    def share(self) -> float:
        """Share of the training that is done, 0 to 1."""
        return min(1.0, (self.epoch or 0.0) / self.end) if self.end else 0.0

    @property
    def whole(self) -> float | None:
        """Seconds that the whole run takes: as long for the rest of the training as for what is done of it."""
        return self.seconds or (self.trained / self.share if self.trained and self.share else None)


class Runs(Index):
    """The runs below a results folder as objects."""

    def __init__(self, outputs: Path, cache: Cache) -> None:
        super().__init__(outputs, cache)
        self._configs: dict[str, SharedConfig] = {}  # by their key

    def find(self) -> list[RunFolder]:
        """The runs, sorted by parent directory, then by start."""
        return sorted(map(self._run, self.entries()), key=lambda run: (run.parent.split("/"), run.began, run.path))

    def at(self, paths: Iterable[str]) -> list[RunFolder]:
        """The runs in some folders, by their paths relative to the results folder."""
        return [self._run(entry) for path in paths if (entry := self._entry(path)) is not None]

    def _run(self, entry: Indexed) -> RunFolder:
        key, said = entry.content["shared"], dict(entry.content)
        del said["damaged"], said["damaged_rows"]
        if key not in self._configs:
            self._configs[key] = SharedConfig(entry.config, key)
        said |= {"shared": self._configs[key], "units": entry.units, "evaluations": entry.evaluations}
        run = RunFolder(self._outputs, entry.path, entry.marks, entry.began, **said)
        run.owner = lock.owner(run.folder)
        return run


def entries(run: RunFolder) -> list[Entry]:
    """The evaluations in a run's results, of all epochs; none if these are missing or damaged, as by changed bits."""
    path = run.folder / results.NAME
    return _entries(path, find_mark(str(path)))


@lru_cache(4096)
def _entries(path: Path, mark: files.Mark | None) -> list[Entry]:
    """The evaluations in a file; ``mark`` is that of the file."""
    content = results.read(path.parent)
    return [] if content is None else list(content["evaluations"])


def finished(outputs: Path) -> list[RunFolder]:
    """Every run with a ``results.json`` below a folder, each run_id once, sorted by directory."""
    cache, first = Cache(outputs), dict[str, RunFolder]()
    for run in sorted(Runs(outputs, cache).find(), key=lambda run: run.path.split("/")):
        if run.done:
            first.setdefault(run.run_id, run)
    cache.save()
    return list(first.values())
