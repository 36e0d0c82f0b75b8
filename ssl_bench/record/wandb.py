"""The record of a run: ``metrics.jsonl`` always, Weights & Biases if asked.

The files are the record and W&B is a view of it: nothing that goes wrong there stops or changes a run.

What W&B is given
-----------------
Its config has the names that one types on the command line, flat, so that a parallel-coordinates view or a sweep finds
them (an agent of W&B adds the parameters of its sweep under the same names):

=======================================  =========================================================================
``loss``, ``negatives``, ``dataset`` ..  the option of every group, such as ``infonce``
``loss.alpha``, ``temperature.tau``,     every other value of the resolved configuration, without ``paths`` and
``batch_size.size``, ``seed`` ..         ``tracking``
``negatives.k``                          how many negatives an anchor has, also where the configuration leaves it to
                                         the batch: 2N - 2 under ``in_batch``
``facts.lr``, ``facts.parameters`` ..    the facts of ``results.json``
=======================================  =========================================================================

The summary has the metrics of ``results.json`` (``knn/top1`` ...) and the last values of every other curve. Group: the
experiment, else ``name``; job type: ``train``; tags: ``tracking.tags`` and, if it is not full, the scale. State:
finished, failed, or preempting where a signal stopped the run, which a sweep then hands out again.

What resuming does there
------------------------
W&B's step is the number of the row in ``metrics.jsonl``, and every process that goes on with a run first shows what is
in that file and not in W&B:

* offline, all of it: the directory of each process holds the run from its first row, whatever the ones before it lost
  when they were killed (W&B writes to its file every 15 seconds only). So the newest one is enough, and
  ``scripts/sync_wandb.sh`` sends that one, once the run is finished. Sending the others as well, or ``resume="allow"``,
  with which ``wandb sync`` puts what it is given behind what is there, would show rows twice.
* online, what follows the last row that the server has (``resume="allow"``). Rows that were shown before a crash and
  are computed again have a number that the server has seen: W&B leaves them out, and they are the same ones (unless
  ``log_every`` was changed in between).

Under an agent of a W&B sweep (``WANDB_SWEEP_ID``) the agent says which run of which project is written to; elsewhere
the run's identity does. A run that another process, or sweep, has carried out already is shown to the agent from its
files (:func:`show_agent`), so that each of its suggestions gets its result.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import ConfigError

log = logging.getLogger(__name__)

NAME = re.compile(r"[^/\\#?%:@]{1,128}")
KEY = re.compile(r"[0-9a-f]{40}|wandb_v\d+_\w+")  # what W&B hands out


class Tracker:
    """Rows of metrics, written by rank 0 only.

    Args:
        folder: the run's directory.
        config: its resolved configuration.
        run_id: its identity, also in W&B, so that a resumed run goes on in the same one.
        step: rows after this step are dropped: they were written between the checkpoint and the interruption. None:
            all are kept.
        facts: what the run amounts to, for W&B's config.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        run_id: str,
        step: int | None,
        facts: Mapping[str, Any],
    ) -> None:
        self.folder, self.config, self.run_id, self.facts = folder, config, run_id, facts
        self.path = folder / "metrics.jsonl"
        rows = self.path.read_text().splitlines() if self.path.exists() else []
        if step is not None and rows:
            rows = [line for line in rows if _step(line) <= step]
            files.write_text(self.path, "".join(f"{row}\n" for row in rows))
        self._number = len(rows)  # of the next row
        self._wandb: Any = None
        self._broken = config["tracking"]["mode"] == "off"

    def row(self, step: int, values: Mapping[str, Any], pictures: Mapping[str, Path] | None = None) -> None:
        """Appends one row and shows it in W&B, with PNG files by name as ``figures/<name>``."""
        row = {"step": step, **values}
        files.append(self.path, json.dumps(row) + "\n")
        self._view(lambda run: run.log(_shown(row) | _images(pictures or {}), step=self._number, commit=True))
        self._number += 1

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Ends the W&B run in its true state: 0 finished, 128 + n preempted by signal n, anything else failed."""

        def end(run: Any) -> None:
            run.summary.update(dict(summary))
            if exit_code > 128:
                run.mark_preempting()
            run.finish(exit_code=exit_code)

        if self._wandb is not None or summary or agent():
            self._view(end)

    def _view(self, act: Callable[[Any], None]) -> None:
        if self._broken:
            return
        try:
            if self._wandb is None:
                self._wandb = self._open()
            act(self._wandb)
        except Exception as error:  # W&B failing never fails a run
            self._broken = True
            log.warning("W&B is given up for this run, %s has everything: %s", self.path, error)

    def _open(self) -> Any:
        # Imported and started with the first row: it must not delay the first step.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        settings, choices = self.config["tracking"], self.config["choices"]
        place = {"project": settings["project"], "entity": settings["entity"], "id": self.run_id}
        run = wandb.init(
            **({} if agent() else place),
            mode=settings["mode"],
            dir=self.folder.resolve(),  # W&B's own process may be in another folder
            name="-".join(str(choices[g]) for g in ("dataset", "framework", "loss") if g in choices)
            + f"-{self.run_id}",
            group=choices.get("experiment", self.config["name"]),
            job_type="train",
            tags=[*settings["tags"], *([] if self.config["scale"] == "full" else [self.config["scale"]])],
            config=shown_config(self.config, self.facts),
            resume="allow" if settings["mode"] == "online" else None,
            settings=wandb.Settings(console="off", init_timeout=30, x_disable_stats=False),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        former = self.path.read_text().splitlines()[: self._number] if self._number else []
        for number in range(run.starting_step, len(former)):
            run.log(_shown(json.loads(former[number])), step=number, commit=True)
        return run


def check(config: Mapping[str, Any]) -> None:
    """Refuses what W&B would refuse, and an API key where it would be written to disk.

    Raises:
        ConfigError: naming the key and what to set, without saying what it was set to if that may be a secret.
    """
    settings, secret = config["tracking"], os.environ.get("WANDB_API_KEY", "")
    for name in ("entity", "project"):
        value = settings[name] or "none"
        if KEY.search(value) or not NAME.fullmatch(value):
            raise ConfigError(f"set tracking.{name} to a name of W&B's: no address, no key")
    if any(map(KEY.search, settings["tags"])) or (len(secret) > 20 and secret in json.dumps(config)):
        raise ConfigError("an API key of W&B stands in the configuration, which is written to disk: set WANDB_API_KEY")


def show_agent(config: Mapping[str, Any], run_id: str, folder: Path) -> None:
    """Under an agent of a W&B sweep: shows it a finished run from its files; elsewhere nothing is done."""
    if agent():
        results = files.read_json(folder / "results.json")
        Tracker(folder, config, run_id, None, results["facts"]).finish(results["metrics"], 0)


def shown_config(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration and a run's facts as W&B's config; the head of this file is its reference."""
    flat: dict[str, Any] = {}

    def add(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, each in value.items():
                add(each, f"{name}.{key}")
        elif not name.endswith("._target_"):
            flat[name] = value

    for name, value in config.items():
        if name not in ("paths", "tracking", "choices"):
            add(value, name)
    add(facts, "facts")
    flat |= {group: option for group, option in config["choices"].items() if group != "tracking"}
    if "negatives_per_anchor" in facts:
        flat["negatives.k"] = facts["negatives_per_anchor"]
    return flat


def agent() -> bool:
    """Whether an agent of a W&B sweep has started this run; it says in the environment which one of W&B's it is."""
    return "WANDB_SWEEP_ID" in os.environ


def log_table(name: str, headings: Sequence[str], rows: Sequence[Sequence[str]], record: Mapping[str, Any]) -> None:
    """A paper's table as an artifact of its own W&B run: a table to look at and ``table.json`` to read.

    ``WANDB_MODE`` and ``WANDB_PROJECT`` say where it goes; without them it stays on disk, in the project ssl-bench.
    """
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    project, label = os.environ.get("WANDB_PROJECT", "ssl-bench"), name.replace("/", "-")
    with wandb.init(project=project, job_type="table", name=label, mode=mode) as run:
        artifact = wandb.Artifact(label, type="table", metadata={"table": name})
        shown = wandb.Table(columns=list(headings), data=[list(row) for row in rows])
        artifact.add(shown, "table")
        with artifact.new_file("table.json") as file:
            json.dump(record, file, indent=2)
        run.log_artifact(artifact)
        run.log({name: shown})


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Lists, which are shares of equal steps from 0 to 1, as W&B's histograms."""
    if not any(isinstance(value, list) for value in row.values()):
        return dict(row)
    import numpy as np
    import wandb

    def shown(value: Any) -> Any:
        edges = np.linspace(0, 1, len(value) + 1) if isinstance(value, list) else None
        return value if edges is None else wandb.Histogram(np_histogram=(np.array(value), edges))

    return {name: shown(value) for name, value in row.items()}


def _images(pictures: Mapping[str, Path]) -> dict[str, Any]:
    if not pictures:
        return {}
    import wandb

    return {f"figures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}


def _step(line: str) -> int:
    """The step of a row; a row cut short by a crash counts as after everything."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**63
