"""Runs as an array of Slurm jobs, by submitit."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.errors import ConfigError, require
from ssl_bench.launch import grid
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run, carry_out
from ssl_bench.record import streams

# Its names of our settings.
SBATCH = {"name": "job_name", "timeout_min": "time", "tasks_per_node": "ntasks_per_node", "jobs": "array_parallelism"}
PAUSE = 1.0  # seconds between two looks at the jobs


class _Task:
    """Carries out a run in a Slurm job, once on each of its nodes."""

    def __call__(self, run: Run, wait: bool) -> Outcome:
        streams.outlive_reader()
        outcome = carry_out(run, wait)
        if outcome.state is State.INTERRUPTED:
            shown = _shown()
            if outcome.signal == signal.SIGUSR2 or _is_to_make_room(shown):
                signal.raise_signal(signal.SIGUSR2)  # for submitit, which requeues the job and ends this process
            if _restarts(shown):
                sys.exit(outcome.code)  # without a result, for which the grid would not wait any longer
        return outcome

    def checkpoint(self, run: Run, wait: bool) -> Any:
        """Return the same job, which submitit submits again when Slurm requeues it."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, run, wait)


def _shown() -> str:
    """Ask Slurm for the record of this job; return its text, empty if Slurm does not answer."""
    from submitit import JobEnvironment

    command = ["scontrol", "show", "job", JobEnvironment().job_id]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _is_to_make_room(shown: str) -> bool:
    """Whether this job is preempted after a time of grace, and not requeued if it ends before."""
    return "JobState=RUNNING" in shown and re.search(r"PreemptTime=\d", shown) is not None


def _restarts(shown: str) -> bool:
    """Whether Slurm has requeued this job: it has counted a restart of which this process does not know."""
    count = re.search(r"Restarts=(\d+)", shown)
    return count is not None and int(count[1]) > int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def in_queue(
    runs: Sequence[Run], settings: Mapping[str, Any], folder: Path, wait: bool
) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs as an array of Slurm jobs, and yield each with its outcome as it ends.

    Stopping this process leaves the jobs running: Slurm signals them.

    Args:
        settings: of ``launcher=slurm``.
        folder: of the grid.

    Raises:
        ConfigError: Slurm refuses the jobs.
    """
    try:
        jobs = _executor(settings, folder).map_array(_Task(), runs, [wait] * len(runs))
    except RuntimeError as error:
        reason = str(error).strip().rpartition("\n")[2]
        if not reason.startswith("sbatch: "):
            raise
        remedy = "set launcher.<key> to what this cluster has, or launcher to local"
        raise ConfigError(f"launcher=slurm: {reason}: {remedy}") from error
    left = dict(zip(runs, jobs, strict=True))
    while left:
        time.sleep(PAUSE)
        for run in [run for run, job in left.items() if job.done()]:
            yield run, _end(run, left.pop(run))


def _end(run: Run, job: Any) -> Outcome:
    """How the run of a job ended, as its first node says; if it cannot say, as it was recorded last."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        outcome: Outcome = job.results()[0]
    except FailedJobError as error:
        return Outcome.failed("its job failed", detail=str(error))
    except UncompletedJobError:
        assert run.grid is not None
        return grid.outcome(run.grid, run.number)
    return outcome


def script(settings: Mapping[str, Any], folder: Path, count: int) -> str:
    """The script of the jobs of ``count`` runs, on a machine without Slurm, too."""
    text: str = _executor(settings, folder).script(count)
    return text


def check() -> None:
    """Refuse to submit jobs from a machine without Slurm."""
    remedy = "local, or start the command on a machine that has Slurm: there is no srun"
    require(shutil.which("srun") is not None, "launcher", "slurm", remedy)


def _executor(settings: Mapping[str, Any], folder: Path) -> Any:
    """submitit's executor, which can say what it would submit."""
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:  # also where there is no Slurm
            return 1

        def script(self, count: int) -> str:
            self.parameters |= {"map_count": count} if count > 1 else {}
            return self._make_submission_file_text(self._submitit_command_str, "")

    given = {SBATCH.get(key, key): value for key, value in settings.items() if value is not None}
    retries, python, memory = (given.pop(key, None) for key in ("max_num_timeout", "python", "mem_gb"))
    executor = Executor(folder / "slurm", retries, python=python)
    if cores := given.get("cpus_per_task"):
        given["srun_args"] = [f"--cpus-per-task={cores}"]  # of which srun knows nothing since Slurm 22.05
    executor.update_parameters(**given, **({"mem": f"{int(memory * 1024)}MB"} if memory else {}))
    return executor
