"""One cell of a grid, or the only one: from Hydra's composition to an outcome, without getting in anybody's way."""

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ssl_bench import files
from ssl_bench.config import compose as configuration
from ssl_bench.config.identity import run_dir, run_id
from ssl_bench.errors import ConfigError
from ssl_bench.launch import grid
from ssl_bench.launch.claim import Claim
from ssl_bench.launch.slots import Place
from ssl_bench.record import wandb as tracking
from ssl_bench.record.summary import headline, report

Outcome = dict[str, Any]
Check = Callable[[dict[str, Any]], None]
Work = Callable[[dict[str, Any]], dict[str, float]]  # metrics of a configuration


class Cell:
    """A cell as Hydra made it.

    Args:
        cfg: its configuration, and ``settings``: Hydra's own.
        check: raises ConfigError for values that cannot be meant.
        work: what it does, in this process; None: it pre-trains and evaluates on ``devices``.
    """

    def __init__(self, cfg: Any, settings: Any, check: Check, work: Work | None) -> None:
        self.cfg, self.check, self.work = cfg, check, work
        self.grid = settings.mode.name == "MULTIRUN"
        self.overrides, self.choices = list(settings.overrides.task), dict(settings.runtime.choices)
        folders = [source.path for source in settings.runtime.config_sources if source.provider == "command-line"]
        flags = [word for folder in folders for word in ("--config-dir", folder)]
        self.command = shlex.join(["ssl-bench", settings.job.config_name, *flags, *self.overrides])
        self.launcher = self.choices["hydra/launcher"] if self.grid else "basic"
        self.jobs = settings.launcher.n_jobs if self.launcher == "local" else 1
        self.number = settings.job.num if self.grid else 0
        self.sweep = Path(settings.sweep.dir)
        self.quiet = self.launcher == "local"  # others use the terminal at the same time
        self.torchrun = "TORCHELASTIC_RUN_ID" in os.environ and work is None

    def __call__(self, wait: bool) -> Outcome:
        """Carries it out and says how it ended; nothing is raised, so that the others go on.

        Args:
            wait: for a process that has the run; else the cell is ``held``.
        """
        try:
            outcome = self._carry_out(wait)
        except ConfigError as error:
            outcome = {"state": "failed", "reason": str(error), "code": 2}
        if outcome["state"] == "interrupted":
            outcome["code"] = 128 + outcome["signal"]
            name = signal.Signals(outcome["signal"]).name
            print(f"interrupted by {name}; resume with the same command", file=sys.stderr, flush=True)
        if outcome["state"] in ("failed", "held") and os.environ.get("RANK", "0") == "0":
            print(f"ssl-bench: {outcome['reason']}", file=sys.stderr, flush=True)
        self._note(outcome)
        return outcome

    def _note(self, outcome: Outcome) -> None:
        if self.grid:
            grid.record(self.sweep, self.number, self.overrides, outcome)

    def _carry_out(self, wait: bool) -> Outcome:
        self.config = configuration.resolve(self.cfg, self.choices)
        if self.torchrun:
            if self.grid:
                raise ConfigError(
                    "a grid cannot run under torchrun, where every rank would sweep: use devices=N instead"
                )
            self.config["devices"] = int(os.environ["WORLD_SIZE"])
        if self.grid and tracking.agent():
            raise ConfigError("a grid cannot run under a W&B agent, which starts a cell at a time: leave -m out")
        self.check(self.config)
        self.identity, self.folder = run_id(self.config), run_dir(self.config)
        self.results = self.folder / "results.json"
        self._note({"state": "running", "folder": str(self.folder)})
        return self._run(wait) | {"folder": str(self.folder)}

    def _run(self, wait: bool) -> Outcome:
        from ssl_bench.launch.nodes import nodes

        # Where the ranks have more than one parent, rank 0 tells them all whether there is anything to do.
        several = self.torchrun or nodes().count > 1
        first = os.environ["RANK"] == "0" if self.torchrun else nodes().mine == 0
        if self.results.exists() and not several:
            return self._conclude({"state": "done before"})
        from ssl_bench import parts as assemble  # torch: only when there is something to train

        if self.work is None:
            here = int(os.environ["LOCAL_WORLD_SIZE"]) if self.torchrun else nodes().share(self.config["devices"])
            assemble.validate(self.config, here)
        if not first:
            return self._launch()
        if self.results.exists():
            return self._conclude(self._launch())
        own = Place(self.config["devices"], self.config["runs_per_gpu"], self.jobs) if self._placed() else None
        with own or contextlib.nullcontext():
            return self._claimed(wait)

    def _placed(self) -> bool:
        return self.launcher == "local" and self.work is None

    def _claimed(self, wait: bool) -> Outcome:
        """The run, once it is this process's alone."""
        claim = Claim(self.folder)
        try:
            owner = claim.take()
            if owner is not None:
                if not wait:
                    return {"state": "held", "reason": f"{self.folder} is being trained by {owner}", "code": 1}
                claim.wait(lambda owner: print(f"{self.folder} is being trained by {owner}: waiting", flush=True))
        except OSError as error:
            raise ConfigError(unwritable(error)) from error
        try:
            if self.results.exists():  # meanwhile
                return self._conclude({"state": "done before"})
            self._begin()
            return self._conclude(self._launch())
        finally:
            claim.release(self.results.exists())

    def _begin(self) -> None:
        try:
            (self.folder / "failed.json").unlink(missing_ok=True)
            files.write_text(self.folder / "command.txt", self.command + "\n")
            files.write_text(self.folder / "config.yaml", yaml.safe_dump(self.config, sort_keys=False))
        except OSError as error:
            raise ConfigError(unwritable(error)) from error
        if not self.quiet:
            print(f"run {self.identity} in {self.folder}", flush=True)

    def _launch(self) -> Outcome:
        from ssl_bench.launch import ranks as launch

        if self.work is not None:
            return launch.alone(self.work, self.config, self.identity, self.folder)
        if self.torchrun:
            return launch.join(self.config, self.identity, self.folder)
        return launch.launch(self.config, self.identity, self.folder, apart=self._placed())

    def _conclude(self, outcome: Outcome) -> Outcome:
        """Shows how the run ended, and keeps the reason if it failed."""
        if outcome["state"] == "done before" and self.work is None:
            tracking.show_agent(self.config, self.identity, self.folder)
        if outcome["state"] in ("done", "done before") and self.quiet:
            print(f"[{self.number + 1}] {outcome['state']}: {headline(self.folder)}", flush=True)
        elif outcome["state"] in ("done", "done before"):
            print("" if outcome["state"] == "done" else f"already done: {self.folder}\n", end="")
            report(self.folder)
        if outcome["state"] == "failed":
            detail = outcome.pop("detail")
            if detail:
                print(detail, file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):  # a full disk may be the reason, and is about to be told
                files.write_json(self.folder / "failed.json", {"reason": outcome["reason"], "detail": detail})
        return outcome


def unwritable(error: OSError) -> str:
    return f"{error.filename or 'paths.outputs'}: {error.strerror}; set paths.outputs to a folder that can be written"
