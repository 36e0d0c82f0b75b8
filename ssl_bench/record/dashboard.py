"""The rows of a run in ``metrics.jsonl``, one JSON object a row, each with its ``step``, and in other programs.

The file is written by rank 0 and is the record; W&B, TensorBoard and plugins show it. The configuration there is flat
and has the names of the command line:

=======================================  =========================================================================
``loss``, ``negatives``, ``dataset`` ..  the chosen option of every group, such as ``infonce``
``loss.alpha``, ``temperature.tau``,     every other value of the resolved configuration, without ``paths`` and
``batch_size.size``, ``seed`` ..         ``tracking``
``batch_size``                           the size, as ``batch_size.size``
``negatives.k``                          the number of negatives per anchor, also where the batch size determines it:
                                         2N - 2 under ``in_batch``
``facts.lr``, ``facts.parameters`` ..    the facts of ``results.json``
=======================================  =========================================================================
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ssl_bench import files, surroundings
from ssl_bench.config.build import build
from ssl_bench.record import evaluations, runs

log = logging.getLogger(__name__)


class Tracker(contextlib.AbstractContextManager["Tracker"]):
    """Context manager that writes rows of metrics to ``metrics.jsonl`` and shows them as ``tracking`` says.

    The file is the record, a dashboard a view of it: a failure there never stops or changes a run.

    Args:
        folder: the run's directory.
        config: its resolved configuration.
        run_id: its identity.
        step: rows after this step are removed: they were written between the checkpoint and the interruption. None
            keeps all.
        facts: facts of the run, as in ``results.json``.
        evaluated_step: step of the last evaluation in the checkpoint; rows of later evaluations, which are repeated,
            are removed.

    Raises:
        OSError: the file cannot be read or written, or is not a regular file.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        run_id: str,
        step: int | None,
        facts: Mapping[str, Any],
        evaluated_step: int = 0,
    ) -> None:
        self.path = folder / runs.METRICS
        content = files.read_bytes(files.of_run(self.path), math.inf) if files.exists(self.path) else b""
        rows = [(line, row) for line in content.splitlines() if (row := runs.parse_row(line))]  # others were cut short
        ends = {True: step, False: evaluated_step}  # of rows of the training, and of others
        lines = [line.decode() for line, row in rows if step is None or row["step"] <= ends["loss" in row]]
        if step is not None and content:
            files.write_text(self.path, "".join(f"{line}\n" for line in lines))
        node = config["tracking"]
        kind = partial(build, node, "tracking") if "_target_" in node else DASHBOARDS.get(node["mode"])
        self._dashboard: Dashboard | None = None
        self._client: Any = None  # that the dashboard has opened with the first row, so that the first step is not late
        self._number = len(lines)  # of the next row
        if kind is not None:  # "off" is none
            config, facts = copy.deepcopy((config, facts))  # the code of a user must not change those of the run
            new = partial(kind, folder=folder, config=config, run_id=run_id, facts=facts, lines=lines)
            self._dashboard = self._attempt(node.get("_target_") or node["mode"], new)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.finish({}, getattr(error, "exit_code", 1))

    def row(self, step: int, values: Mapping[str, Any], pictures: Mapping[str, Path] | None = None) -> None:
        """Append one row. ``pictures`` are PNG files by name, which the file does not have."""
        row = {"step": step, **values}
        files.append(self.path, json.dumps(row) + "\n")
        self._show(lambda dashboard, client: dashboard.show(client, self._number, row, pictures or {}))
        self._number += 1

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Show how the run ended: 0 finished, 128 + n preempted by signal n, anything else failed.

        A dashboard that has no row to show is not opened, unless an agent of a sweep waits for the result.

        Args:
            summary: metrics of a finished run.
        """
        if self._client is not None or under_agent():
            self._show(lambda dashboard, client: dashboard.end(client, summary, exit_code))

    def _show(self, action: Callable[[Dashboard, Any], None]) -> None:
        """Call ``action`` with the dashboard, if there is one, and its client."""
        if self._dashboard is not None and self._client is None:
            self._client = self._attempt(self._dashboard.name, self._dashboard.open)
        if (dashboard := self._dashboard) is not None:
            self._attempt(dashboard.name, lambda: action(dashboard, self._client))

    def _attempt(self, name: str, action: Callable[[], Any]) -> Any:
        """Call code of a dashboard, which is not used any more after its first failure."""
        try:
            return action()
        except Exception as error:  # the clients raise many kinds of errors, and none may fail the run
            self._dashboard = None
            sentence = "%s failed and is not used any more in this run; metrics.jsonl has all rows: %s"
            log.warning(sentence, name, " ".join(str(error).split()))


def show_agent(config: Mapping[str, Any], run_id: str, folder: Path) -> None:
    """Show a finished run to the agent of a W&B sweep that asked for it; do nothing where there is no agent."""
    if under_agent() and (content := runs.read_results(folder)):
        tracker = Tracker(folder, config, run_id, None, content.get("facts", {}))
        tracker.finish(evaluations.shown(content["evaluations"], config), 0)


class Dashboard(ABC):
    """One run in another program, opened with its first row. A failure there never stops or changes the run.

    A subclass in a package of your own (conf/README.md has one) has ``open``, ``show`` and ``end``. Its constructor may
    have arguments of its own, which are keys of ``tracking``, and passes those below on.

    Args:
        folder: the run's directory.
        config: its resolved configuration.
        run_id: its identity.
        facts: facts of the run, as in ``results.json``.
        lines: rows of ``metrics.jsonl`` from earlier processes.

    Attributes:
        name: of the other program, for sentences about it.
    """

    name = "the dashboard"

    def __init__(
        self, folder: Path, config: Mapping[str, Any], run_id: str, facts: Mapping[str, Any], lines: Sequence[str]
    ) -> None:
        self.folder, self.config, self.run_id, self.facts, self.lines = folder, config, run_id, facts, lines

    @abstractmethod
    def open(self) -> Any:
        """Start the client, show the earlier rows (``lines``) that the other program lacks, and return the client."""

    @abstractmethod
    def show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        """Show a row.

        Args:
            client: what :meth:`open` has returned.
            number: of the row in ``metrics.jsonl``, from 0.
            pictures: PNG files by name, to be shown as ``figures/<name>``.
        """

    @abstractmethod
    def end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        """Show how the run ended, as :meth:`Tracker.finish` says, and stop the client."""


def flat_config(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, as described at the head of this file."""
    negatives = {"negatives.k": facts["negatives_per_anchor"]} if "negatives_per_anchor" in facts else {}
    return runs.flat({**config, "facts": facts}) | negatives


class WandbRun(Dashboard):
    """One run in W&B, with the run_id as its identity, so that a resumed run continues there.

    Its config has the names of the command line (see the head of this file), under which an agent of a W&B sweep adds
    its parameters. The summary has the last values of the curves and the numbers as the table of runs names them; where
    several evaluations made one, its plain name is that of the one that this command asks for. Name: ``WANDB_NAME``,
    else dataset, framework, loss, batch size, number of negatives, temperature and seed. Group: ``WANDB_RUN_GROUP``,
    else the experiment, else ``name``. Tags: ``tracking.tags`` and the scale, unless it is full. State: finished,
    failed, or preempting if a signal stopped the run, which makes a sweep start it again.

    W&B's step is the row's number in ``metrics.jsonl``. Every process that resumes a run first shows the rows that W&B
    lacks: online those after the last one that the server has; offline all, in a directory of its own. So the newest
    directory is enough, and ``scripts/sync_wandb.sh`` sends only that one: ``wandb sync`` would show rows twice.

    Under an agent of a W&B sweep (``WANDB_SWEEP_ID``) the agent sets the run and project to write to, otherwise the
    run_id does. A suggested run that has finished before is shown from its files (:func:`show_agent`).
    """

    name = "W&B"

    def show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        import numpy as np
        import wandb

        values = {name: value for name, value in row.items() if name != "evaluations"}
        for name, of in [*values.items()]:
            if isinstance(of, list):  # shares of equal bins from 0 to 1
                values[name] = wandb.Histogram(np_histogram=(np.array(of), np.linspace(0, 1, len(of) + 1)))
        images = {f"figures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}
        client.log(values | images, step=number, commit=True)

    def end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        client.summary.update(dict(summary))
        if exit_code > 128:
            client.mark_preempting()
        client.finish(exit_code=exit_code)

    def open(self) -> Any:
        settings = self.config["tracking"]
        surroundings.of_wandb(settings["mode"])
        import wandb

        place = {"id": self.run_id} | {key: settings[key] for key in ("project", "entity")}
        run = wandb.init(
            **({} if under_agent() else place),
            mode=settings["mode"],
            # W&B's own process may have another working directory, and fails at names that are not UTF-8, as this does.
            dir=str(self.folder.resolve()).encode().decode(),
            name=os.environ.get("WANDB_NAME") or f"{_label(self.config, self.facts)}-{self.run_id}",
            group=os.environ.get("WANDB_RUN_GROUP") or self.config["choices"].get("experiment", self.config["name"]),
            job_type="train",
            tags=[*settings["tags"], *([] if self.config["scale"] == "full" else [self.config["scale"]])],
            config=flat_config(self.config, self.facts),
            resume="allow" if settings["mode"] == "online" else None,
            settings=wandb.Settings(console="off", init_timeout=30, x_disable_stats=False),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        for number in range(run.starting_step, len(self.lines)):
            self.show(run, number, json.loads(self.lines[number]), {})
        return run


def _label(config: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The name of a run by the settings that vary most in grids, such as ``cifar10-simclr-dcl-b128-k254-t0.1-s0``."""
    flat = flat_config(config, facts)
    words = [str(flat[group]) for group in ("dataset", "framework", "loss") if flat.get(group)]
    numbers = {"b": "batch_size.size", "k": "negatives.k", "t": "temperature.tau", "s": "seed"}
    return "-".join([*words, *(f"{word}{flat[key]:g}" for word, key in numbers.items() if flat.get(key) is not None)])


def under_agent() -> bool:
    """Whether an agent of a W&B sweep started this process."""
    return "WANDB_SWEEP_ID" in os.environ


class TensorBoardRun(Dashboard):
    """TensorBoard: a view of a run's files, in ``<run>/tensorboard/``. A failure here never stops or changes a run.

    ``tensorboard --logdir outputs`` shows the curves of every run over the steps, by its directory. ``epoch``, which is
    proportional to the step, and shares of bins are not shown. A process that resumes a run writes a file of its own,
    whose beginning hides the later rows of earlier files: they are computed again.
    """

    name = "TensorBoard"

    def open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # heavy: only where it is used

        done = json.loads(self.lines[-1])["step"] if self.lines else -1  # its last step
        return SummaryWriter(str(self.folder / "tensorboard"), purge_step=done + 1)  # type: ignore[no-untyped-call]

    def show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        for name, value in row.items():
            if name not in ("step", "epoch") and not isinstance(value, list):
                client.add_scalar(name, value, row["step"])
        client.flush()  # the file lacks no row if the run is killed

    def end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        client.close()


DASHBOARDS: dict[str, type[Dashboard]] = {"offline": WandbRun, "online": WandbRun, "tensorboard": TensorBoardRun}
