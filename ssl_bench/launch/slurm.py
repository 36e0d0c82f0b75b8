"""Carry out a grid by an array of Slurm jobs, with submitit; jobs that Slurm has requeued resume their runs."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from submitit import JobEnvironment, SlurmExecutor
from submitit.core.utils import UncompletedJobError
from submitit.helpers import Checkpointable

from ssl_bench.errors import ConfigError, one_line
from ssl_bench.launch.processes import OnEnd, Outcome, Run, State, nodes
from ssl_bench.launch.run import carry_out, failed_since, here
from ssl_bench.record.runs import is_complete

SBATCH = {"name": "job_name", "timeout_min": "time", "tasks_per_node": "ntasks_per_node"}  # its names of our settings


class _Worker(Checkpointable):  # type: ignore[misc]
    """Carries out runs in a Slurm job, which starts it once on each of its nodes, and again after a requeue."""

    def __call__(self, runs: Sequence[Run], since: float) -> dict[int, Outcome]:
        job = JobEnvironment()
        job.paths.result_pickle.unlink(missing_ok=True)  # of a start before, which the grid would take for the end
        before = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        ends = _on_each_node(runs, since, before > 0)
        for stop in [end.code - 128 for end in ends.values() if end.state is State.INTERRUPTED]:
            # Empty if Slurm does not answer:
            shown = subprocess.run(["scontrol", "show", "job", job.job_id], capture_output=True, text=True).stdout
            preempted = "JobState=RUNNING" in shown and re.search(r"PreemptTime=\d", shown)  # after a time of grace
            if stop == signal.SIGUSR2 or preempted:
                signal.raise_signal(signal.SIGUSR2)  # for submitit, which requeues the job and ends this process
            if (count := re.search(r"Restarts=(\d+)", shown)) and int(count[1]) > before:  # Slurm has requeued it
                sys.exit(128 + stop)  # without a result, for which the grid would not wait any longer
        return ends


def _on_each_node(runs: Sequence[Run], since: float, waits: bool) -> dict[int, Outcome]:
    """Carry out the runs; the first of several nodes chooses each run and sends its number to the others.

    Args:
        waits: wait for runs whose lease is taken, since after a node has failed it may be this job's own lease.
    """
    (count, index, rendezvous), ends = nodes(), dict[int, Outcome]()
    on_end = lambda run, outcome: ends.update({run.number: outcome})  # noqa: E731
    if count == 1:
        here(runs, since, on_end, waits)
        return ends
    from torch.distributed import TCPStore  # takes seconds

    host, _, port = rendezvous.partition(":")
    store = TCPStore(host, int(port) + 1, is_master=index == 0, timeout=timedelta(365))
    turns = map(str, itertools.count())
    if index == 0:
        here(runs, since, on_end, waits, lambda run: store.set(next(turns), str(run.number)))
        store.set(next(turns), "")
        return ends
    by_number = {str(run.number): run for run in runs}
    while run := by_number.get(store.get(next(turns)).decode()):
        on_end(run, outcome := carry_out(run, wait=True, quiet=True))
        if outcome.state is State.INTERRUPTED:
            break
    return ends


def in_jobs(settings: Mapping[str, Any], folder: Path, runs: Sequence[Run], since: float, on_end: OnEnd) -> None:
    """Carry out runs by an array of Slurm jobs, and wait for them. A signal to this process leaves the jobs running.

    Args:
        settings: ``launcher``.
        folder: for the files of the jobs.

    Raises:
        ConfigError: Slurm refuses the jobs.
        Interrupted: a signal came.
    """
    count, remaining = min(settings["jobs"], len(runs)), [*runs]
    try:
        jobs = _executor(settings, folder).map_array(_Worker(), [runs] * count, [since] * count)
    except UncompletedJobError as error:  # of sbatch
        reason = str(error).strip().rpartition("\n")[2]
        remedy = "set launcher.<key> to what this cluster has, or launcher to local"
        raise ConfigError(f"launcher=slurm: {reason}: {remedy}") from error
    while jobs:
        time.sleep(2.0)
        reported = dict[int, Outcome]()
        for job in [job for job in jobs if job.done()]:
            jobs.remove(job)
            try:
                reported |= job.results()[0]  # of its first node
            except UncompletedJobError as error:
                print(f"ssl-bench: job {job.job_id} failed: {one_line(str(error))}", file=sys.stderr, flush=True)
        for run in [*remaining]:
            done = Outcome(State.DONE, folder=str(run.folder)) if is_complete(run.folder, run.config) else None
            if end := done or reported.get(run.number) or failed_since(run.folder, since):
                remaining.remove(run)
                on_end(run, end)


def script(settings: Mapping[str, Any], folder: Path, runs: int) -> str:
    """The script of the jobs for some runs, which needs no Slurm on this machine."""
    executor, count = _executor(settings, folder), min(settings["jobs"], runs)
    executor.parameters |= {"map_count": count} if count > 1 else {}
    return str(executor._make_submission_file_text(executor._submitit_command_str, ""))


class _Executor(SlurmExecutor):  # type: ignore[misc]
    """The executor of submitit, which can write its script on a machine without Slurm too."""

    @classmethod
    def affinity(cls) -> int:
        return 1


def _executor(settings: Mapping[str, Any], folder: Path) -> _Executor:
    given = {SBATCH.get(key, key): value for key, value in settings.items() if value is not None and key != "jobs"}
    retries, python, memory = (given.pop(key, None) for key in ("max_num_timeout", "python", "mem_gb"))
    executor = _Executor(folder, retries, python=python)
    if cores := given.get("cpus_per_task"):
        given["srun_args"] = [f"--cpus-per-task={cores}"]  # of which srun knows nothing since Slurm 22.05
    executor.update_parameters(**given, **({"mem": f"{int(memory * 1024)}MB"} if memory else {}))
    return executor
