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
from ssl_bench.launch.nodes import nodes
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
        from submitit import JobEnvironment

        job = JobEnvironment()
        job.paths.result_pickle.unlink(missing_ok=True)  # of a start before, which the grid would take for the end
        streams.outlive_reader()
        try:
            with raised():
                ends = _on_each_node(runs, since)
                stop = next((end.signal for end in ends.values() if end.state is State.INTERRUPTED), 0)
        except Interrupted as interrupted:  # between two runs
            ends, stop = {}, interrupted.number
        if stop:
            show = ["scontrol", "show", "job", job.job_id]
            shown = subprocess.run(show, capture_output=True, text=True).stdout  # empty if Slurm does not answer
            preempted = "JobState=RUNNING" in shown and re.search(r"PreemptTime=\d", shown)  # after a time of grace
            if stop == signal.SIGUSR2 or preempted:
                signal.raise_signal(signal.SIGUSR2)  # for submitit, which requeues the job and ends this process
            count = re.search(r"Restarts=(\d+)", shown)
            if count and int(count[1]) > _restarts():  # Slurm has requeued the job
                sys.exit(128 + stop)  # without a result, for which the grid would not wait any longer
        return ends

    def checkpoint(self, runs: Sequence[Run], since: float) -> Any:
        """Return the same job, which submitit submits again when Slurm requeues it."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, runs, since)


def _restarts() -> int:
    """How often Slurm has started this job before. If its node failed, the lease that it had then is still there."""
    return int(os.environ.get("SLURM_RESTART_COUNT") or 0)


def _on_each_node(runs: Sequence[Run], since: float) -> Ends:
    """Go over the runs; the first of several nodes chooses each run and tells the others its number."""
    team, waits = nodes(), _restarts() > 0
    if team.count == 1:
        return work(runs, since, lambda run, outcome: None, waits)
    from torch.distributed import TCPStore  # takes seconds

    host, _, port = team.rendezvous.partition(":")
    store = TCPStore(host, int(port) + 1, is_master=team.index == 0, timeout=LONGEST)
    turns = itertools.count()
    if team.index == 0:
        tell = lambda run: store.set(str(next(turns)), str(run.number))  # noqa: E731
        ends = work(runs, since, lambda run, outcome: None, waits, begin=tell)
        store.set(str(next(turns)), "")
        return ends
    by_number, ends = {str(run.number): run for run in runs}, Ends()
    while run := by_number.get(store.get(str(next(turns))).decode()):
        ends[run.number] = follow(run)
        if ends[run.number].state is State.INTERRUPTED:
            break
    return ends


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
    left = {run.number: run for run in runs}
    while jobs:
        time.sleep(PAUSE)
        reported: Ends = {}
        for job in [job for job in jobs if job.done()]:
            jobs.remove(job)
            reported |= _ends(job)
        for run in [*left.values()]:
            done = Outcome(State.DONE, folder=str(run.folder)) if is_complete(run.folder, run.config) else None
            if end := done or reported.get(run.number) or failed_since(run.folder, since):
                said(left.pop(run.number), end)


def _ends(job: Any) -> Ends:
    """How the runs of a job have ended that is over, as its first node says."""
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        return job.results()[0]  # type: ignore[no-any-return]
    except (FailedJobError, UncompletedJobError) as error:
        print(f"ssl-bench: job {job.job_id} failed: {one_line(str(error))}", file=sys.stderr, flush=True)
        return {}


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
