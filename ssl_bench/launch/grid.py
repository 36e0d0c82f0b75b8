"""A grid on disk: its runs and the outcome of each, whichever launcher carries them out.

``<grid>/grid.json``       :class:`Grid`, written at the start
``<grid>/jobs/<n>.json``   {"overrides", "folder", "state", "reason", "code"}, at the start and the end of each other
                           run

``<grid>`` is ``<paths.outputs>/.sweeps/<start>``.
"""

import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, cast

from ssl_bench import files
from ssl_bench.disk.liveness import alive, start_time
from ssl_bench.disk.patience import make_folder
from ssl_bench.disk.shapes import Bounds
from ssl_bench.errors import ConfigError, one_line, printable
from ssl_bench.launch.outcome import FINISHED, Job, Outcome, State

# Directory and epochs of runs, by what distinguishes them beside the seed: numbers are those after so many epochs.
# None: it trains nothing.
Groups = Mapping[str, Sequence[tuple[Path, int | None]]]
WORDS = {
    State.DONE: "trained",
    State.DONE_BEFORE: "done before",
    State.FAILED: "failed",
    State.INTERRUPTED: "interrupted",
    State.HELD: "held",
}
ALWAYS = (State.DONE, State.DONE_BEFORE, State.FAILED)  # counted in the summary even if there are none
NAME = "grid.json"
SINGLE = "ssl-bench train"
RECENT = 600.0  # seconds; a grid whose process cannot be seen is at work if its last record is younger
ENDED = (*FINISHED, State.FAILED)
LOST = Outcome.failed("its process exited without reporting")


class Grid(TypedDict):
    """Content of ``grid.json``.

    Attributes:
        command: the command that started it.
        host, pid: of its process.
        born: distinguishes the process from later ones with its ``pid``.
        started: in seconds of the epoch.
        runs: the overrides of each run.
        finished: the directories of runs that had results, by number.
        epochs: the length of each run; None: it trains no network.
        left_out: the overrides of runs that cannot be, by ``skip=impossible``.
        single: the command of a single run, without its overrides.
        labels: the name of each run in sentences, if its overrides are not.
    """

    command: str
    host: str
    pid: Annotated[int, Bounds(1, 2**31 - 1)]
    born: NotRequired[str | None]
    started: Annotated[float, Bounds(0, 2**35)]
    runs: list[list[str]]
    finished: NotRequired[dict[str, str]]
    epochs: NotRequired[list[int | None]]
    left_out: NotRequired[list[list[str]]]
    single: NotRequired[str]
    labels: NotRequired[list[str]]


def read(folder: Path) -> Grid | None:
    """The grid in a folder, with what may be missing in its file; None if there is none, or a damaged one, named."""
    content = files.read_json(folder / NAME, Grid)
    if content is None:
        return None
    count = len(content["runs"])
    content = {"finished": {}, "epochs": [None] * count, "left_out": [], "single": SINGLE, "labels": []} | content
    lengths = {len(content["epochs"]), len(content["labels"]) or count, count}
    if len(lengths) > 1 or not all(number.isdecimal() for number in content["finished"]):
        files.say_damaged(folder / NAME)
        return None
    return cast(Grid, content)


def begin(
    folder: Path,
    command: str,
    runs: Sequence[Sequence[str]],
    finished: Mapping[int, Path],
    epochs: Sequence[int | None],
    left_out: Sequence[Sequence[str]] = (),
    single: str = SINGLE,
    labels: Sequence[str] = (),
) -> None:
    """Write ``grid.json``, again for a grid to which runs were added; the arguments are those of :class:`Grid`."""
    make_folder(folder / "jobs")
    process = {"host": socket.gethostname(), "pid": os.getpid(), "born": start_time(os.getpid())}
    content: dict[str, Any] = {"runs": [list(run) for run in runs], "epochs": list(epochs)}
    content |= {"left_out": [list(run) for run in left_out]} if left_out else {}
    content |= {"single": single} if single != SINGLE else {}
    content |= {"labels": list(labels)} if any(labels) else {}
    content["finished"] = {str(number): str(run) for number, run in finished.items()}
    former = read(folder)
    started = former["started"] if former else time.time()
    files.write_json(folder / NAME, {"command": command, **process, "started": started, **content})


def record(folder: Path, number: int, overrides: Sequence[str], outcome: Outcome) -> None:
    """Write the state of one run of the grid."""
    files.write_json(folder / "jobs" / f"{number}.json", {"overrides": list(overrides), **outcome.record()})


def outcome(folder: Path, number: int) -> Outcome:
    """How a run of the grid ended that was not finished before."""
    recorded = Outcome.read(files.read_json(folder / "jobs" / f"{number}.json", Job))
    return LOST if recorded is None or recorded.state is State.RUNNING else recorded


class Asked(NamedTuple):
    """A run that a grid was asked for.

    Attributes:
        overrides: of the run.
        command: that trains only this run.
        grid: the command that started its grid.
        experiment: the name that its overrides give it; empty: none.
        place: the last two names of its directory, which a results folder elsewhere has, too; empty: it is not known.
        state: as it was recorded last; None: it was never started.
        reason: why it failed, in one line.
        when: it was recorded, in seconds of the epoch.
        going: whether its grid will start what is left, as far as its process and its records tell.
    """

    overrides: list[str]
    command: str
    grid: str
    experiment: str
    place: str
    state: State | None
    reason: str
    when: float
    going: bool


def asked(outputs: Path) -> list[Asked]:
    """The runs that all grids below a results folder were asked for, those of the grid that began last at the end."""
    every = list[tuple[float, list[Asked]]]()
    for folder in sorted((outputs / ".sweeps").glob("*")):
        if content := read(folder):
            every.append((content["started"], list(_asked(folder, content))))
    return [one for _, of_grid in sorted(every, key=lambda pair: pair[0]) for one in of_grid]


def _asked(folder: Path, content: Grid) -> Iterator[Asked]:
    before = {int(n): Outcome(State.DONE_BEFORE, folder=place) for n, place in content["finished"].items()}
    outcomes, times = dict[int, Outcome](before), dict.fromkeys(before, content["started"])
    for path in (folder / "jobs").glob("*.json"):
        if path.stem.isdecimal() and (outcome := Outcome.read(files.read_json(path, Job))):
            outcomes[int(path.stem)], times[int(path.stem)] = outcome, path.stat().st_mtime
    ended = len(outcomes) == len(content["runs"]) and all(one.state in ENDED for one in outcomes.values())
    here = content["host"] == socket.gethostname()
    recent = time.time() - max([content["started"], *times.values()]) < RECENT
    going = not ended and (alive(content["pid"], content.get("born", "unknown")) if here else recent)
    for number, overrides in enumerate(content["runs"]):
        outcome = outcomes.get(number)
        name = next((word[5:] for word in overrides if word.startswith("name=")), "")
        place = "/".join(Path(outcome.folder).parts[-2:]) if outcome and outcome.folder else ""
        command, state = f"{content['single']} {shlex.join(overrides)}", outcome.state if outcome else None
        when = times.get(number, content["started"])
        reason = one_line(outcome.reason) if outcome else ""
        yield Asked(overrides, command, content["command"], name, place, state, reason, when, going)


def summarise(folder: Path, show: Callable[[Groups], None]) -> int:
    """Print how each run ended, ``show`` a table of the finished ones, and return the exit code of the grid."""
    content = read(folder)
    if content is None:
        what = "was removed or damaged while its grid ran: start the same command again"
        print(f"ssl-bench: {folder / NAME} {what}", file=sys.stderr)
        return 1
    runs, labels = content["runs"], content["labels"]
    before = {int(number): Outcome(State.DONE_BEFORE, folder=run) for number, run in content["finished"].items()}
    outcomes = [before.get(number) or outcome(folder, number) for number in range(len(runs))]
    states, left_out = [outcome.state for outcome in outcomes], len(content["left_out"])
    counts = [f"{states.count(s)} {word}" for s, word in WORDS.items() if s in ALWAYS or s in states]
    counts += [f"{left_out} left out: impossible"] if left_out else []
    count = len(runs) + left_out
    print(f"{count} run{'s' * (count != 1)}: {', '.join(counts)}")
    shared = set[str]().union(*runs).intersection(*runs)
    finished: dict[str, list[tuple[Path, int | None]]] = {}  # runs that differ in their seed only have one name
    for number, (run, ended) in enumerate(zip(runs, outcomes, strict=True)):
        distinct = [override for override in run if override not in shared]
        seed = [override for override in distinct if override.startswith("seed=")]
        name = labels[number] if labels else " ".join(override for override in distinct if override not in seed)
        if ended.finished and ended.folder is not None:
            finished.setdefault(name or _seeds(runs), []).append((Path(ended.folder), content["epochs"][number]))
        elif ended.state in (State.FAILED, State.HELD):
            reason = ended.reason
            for override in distinct:  # named already
                reason = reason.removeprefix(f"{override}: ")
            named = " ".join([name, *seed] if labels else distinct)
            print("  " + ": ".join(filter(None, (ended.state.value, named, reason))))
    if len(runs) > 1:
        show(_once(finished))
        names = [override.removeprefix("name=").strip("'\"") for override in shared if override.startswith("name=")]
        if not labels and (line := _to_compare(runs, names)):
            print(line)
    stopped = [ended.code for ended in outcomes if ended.state is State.INTERRUPTED]
    if stopped:
        return stopped[0]
    if all(ended.state is State.FAILED and ended.code == ConfigError.exit_code for ended in outcomes):
        return ConfigError.exit_code
    return 1 if {State.FAILED, State.HELD} & set(states) else 0


def _once(groups: Groups) -> Groups:
    """The groups, those of the same runs as one: a grid over settings of an evaluator trains no run twice."""
    names: dict[tuple[tuple[Path, int | None], ...], list[str]] = {}
    for name, runs in groups.items():
        names.setdefault(tuple(dict.fromkeys(runs)), []).append(name)
    return {_common(given): list(runs) for runs, given in names.items()}


def _common(names: Sequence[str]) -> str:
    """The overrides that all names have; all names if they have none, or are labels."""
    words = [name.split(" ") for name in names]
    common = [word for word in words[0] if all(word in others for others in words)]
    return " ".join(common) if common and all("=" in word for word in common) else " and ".join(names)


def _to_compare(runs: Sequence[Sequence[str]], names: Sequence[str]) -> str:
    """The command that compares the runs of a grid with two seeds or more, by the first setting that it varies."""
    keys: dict[str, set[str]] = {}
    for key, _, value in (override.lstrip("+").partition("=") for run in runs for override in run):
        keys.setdefault(key, set()).add(value)
    varied = [key for key, values in keys.items() if len(values) > 1 and key != "seed"]
    first = "loss" if "loss" in varied else next(iter(varied), "")
    several = len(keys.get("seed", ())) > 1 and first
    command = printable(shlex.join(["ssl-bench", "compare", *names, "--by", first]))
    return f"is one better? {command}" if several else ""


def _seeds(runs: Sequence[Sequence[str]]) -> str:
    """The seeds of a grid, as on its command line."""
    seeds = (override.removeprefix("seed=") for run in runs for override in run if override.startswith("seed="))
    return f"seed={','.join(dict.fromkeys(seeds))}"
