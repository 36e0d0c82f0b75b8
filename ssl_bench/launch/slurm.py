"""The workers of a grid as an array of Slurm jobs, by submitit, which go on once Slurm has requeued them."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ssl_bench.errors import ConfigError, one_line, require
from ssl_bench.launch.nodes import forget_result, nodes, restarted
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run, failed_since, follow
from ssl_bench.launch.workers import Ends, Said, work
from ssl_bench.record import streams
from ssl_bench.record.runs import is_complete
from ssl_bench.signals import Interrupted, raised

SBATCH = {"name": "job_name", "timeout_min": "time", "tasks_per_node": "ntasks_per_node"}  # its names of our settings
PAUSE = 2.0  # seconds between two looks at the jobs
LONGEST = timedelta(days=365)  # of a run on several nodes


class _Worker:
    """Goes over the runs in a Slurm job, which is started once on each of its nodes."""

    def __call__(self, runs: Sequence[Run], since: float) -> Ends:
        streams.outlive_reader()
        forget_result()
        try:
            with raised():
                ends, stop = _on_each_node(runs, since)
        except Interrupted as interrupted:  # between two runs
            ends, stop = {}, interrupted.number
        if stop:
            shown = _shown()
            if stop == signal.SIGUSR2 or _is_to_make_room(shown):
                signal.raise_signal(signal.SIGUSR2)  # for submitit, which requeues the job and ends this process
            if _restarts(shown):
                sys.exit(128 + stop)  # without a result, for which the grid would not wait any longer
        return ends

    def checkpoint(self, runs: Sequence[Run], since: float) -> Any:
        """Return the same job, which submitit submits again when Slurm requeues it."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, runs, since)


def _on_each_node(runs: Sequence[Run], since: float) -> tuple[Ends, int]:
    """Go over the runs; return how they ended, and the signal that has stopped this, or 0.

    The first of several nodes chooses each run and tells the others its number.
    """
    team = nodes()
    if team.count == 1:
        return _stopped(work(runs, since, lambda run, outcome: None, wait=restarted()))
    from torch.distributed import TCPStore  # takes seconds

    host, _, port = team.rendezvous.partition(":")
    store = TCPStore(host, int(port) + 1, is_master=team.index == 0, timeout=LONGEST)
    turns = itertools.count()
    if team.index == 0:
        tell = lambda run: store.set(str(next(turns)), str(run.number))  # noqa: E731
        ends = work(runs, since, lambda run, outcome: None, restarted(), begin=tell)
        store.set(str(next(turns)), "")
        return _stopped(ends)
    by_number, ends = {str(run.number): run for run in runs}, Ends()
    while run := by_number.get(store.get(str(next(turns))).decode()):
        ends[run.number] = follow(run)
        if ends[run.number].state is State.INTERRUPTED:
            break
    return _stopped(ends)


def _stopped(ends: Ends) -> tuple[Ends, int]:
    return ends, next((end.signal for end in ends.values() if end.state is State.INTERRUPTED), 0)


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


def in_jobs(runs: Sequence[Run], settings: Mapping[str, Any], folder: Path, since: float, said: Said) -> None:
    """Carry out runs by an array of Slurm jobs, and wait for them. A signal to this process leaves the jobs running.

    Args:
        settings: ``launcher``.
        folder: for the files of the jobs.

    Raises:
        ConfigError: Slurm refuses the jobs.
        Interrupted: a signal came.
    """
    count = min(settings["jobs"], len(runs))
    try:
        jobs = _executor(settings, folder).map_array(_Worker(), [runs] * count, [since] * count)
    except RuntimeError as error:
        reason = str(error).strip().rpartition("\n")[2]
        if not reason.startswith("sbatch: "):
            raise
        remedy = "set launcher.<key> to what this cluster has, or launcher to local"
        raise ConfigError(f"launcher=slurm: {reason}: {remedy}") from error
    left = [*runs]
    while jobs:
        time.sleep(PAUSE)
        over = [job for job in jobs if job.done()]
        jobs = [job for job in jobs if job not in over]
        reported: Ends = {}
        for job in over:
            reported |= {number: end for number, end in _ends(job).items() if end.state is not State.BUSY}
        for run in [*left]:
            done = Outcome(State.DONE, folder=str(run.folder)) if is_complete(run.folder, run.config) else None
            end = done or reported.get(run.number) or failed_since(run.folder, since)
            if end is not None:
                left.remove(run)
                said(run, end)


def _ends(job: Any) -> Ends:
    """How the runs of a job have ended that is over, as its first node says."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        ends: Ends = job.results()[0]
    except UncompletedJobError:
        ends = {}
    except FailedJobError as error:
        ends = {}
        print(f"ssl-bench: job {job.job_id} failed: {one_line(str(error))}", file=sys.stderr, flush=True)
    return ends


def script(settings: Mapping[str, Any], folder: Path, runs: int) -> str:
    """The script of the jobs for some runs, on a machine without Slurm, too."""
    text: str = _executor(settings, folder).script(min(settings["jobs"], runs))
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

    given = {SBATCH.get(key, key): value for key, value in settings.items() if value is not None and key != "jobs"}
    retries, python, memory = (given.pop(key, None) for key in ("max_num_timeout", "python", "mem_gb"))
    executor = Executor(folder / "slurm", retries, python=python)
    if cores := given.get("cpus_per_task"):
        given["srun_args"] = [f"--cpus-per-task={cores}"]  # of which srun knows nothing since Slurm 22.05
    executor.update_parameters(**given, **({"mem": f"{int(memory * 1024)}MB"} if memory else {}))
    return executor
