"""A Slurm cluster for tests, with this machine as its only node, made of Debian's packages."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")

SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=1,sched_interval=1
JobRequeue=1
KillWait=30
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """The reason why no cluster can be started here; empty if one can."""
    absent = [program for program in NEEDED if _find(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "starting Slurm's daemons takes root"


@contextlib.contextmanager
def cluster(cpus: int) -> Iterator[Path]:
    """Run the three daemons and set ``SLURM_CONF`` for Slurm's commands; yield the daemons' folder."""
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # a short path, since the path of a socket has a limit
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    folder.chmod(0o755)
    host = socket.gethostname().partition(".")[0]
    settings = SETTINGS.format(host=host, folder=folder, ports=_free_ports(2), cpus=cpus)
    (folder / "slurm.conf").write_text(settings)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    munge = ["--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    daemons = []
    try:
        for name, options in {"munged": munge, "slurmctld": ["-D"], "slurmd": ["-D"]}.items():
            with open(folder / f"{name}.out", "w") as out:
                command = [str(_find(name)), *options]
                daemons.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
            wait_until(lambda name=name: name != "munged" or (folder / "munge.socket").exists(), 20)  # type: ignore[misc]
        wait_until(lambda: "idle" in output("sinfo", "-h", "-o", "%t"), 60)
        yield folder
    finally:
        output("scancel", "--full", "--signal=KILL", "--user=root")
        for daemon in reversed(daemons):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM if daemon is not daemons[-1] else signal.SIGKILL)
            daemon.wait(20)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(folder, ignore_errors=True)


def output(*command: str) -> str:
    """Output of a Slurm command; empty if it fails."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    """Wait until ``condition`` returns something true; raise TimeoutError after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition was false for {seconds} s")
        time.sleep(0.2)


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
