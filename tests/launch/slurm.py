"""A Slurm cluster for tests, made of Debian's packages. Its nodes share this machine's files and nothing else.

Each node has a network address, a host name and processes of its own (Linux namespaces). Killing a node ends all its
processes at once, as a power failure does.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "ip", "nsenter", "unshare")
NAMESPACES = ("unshare", "--uts", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child")

SETTINGS = """
ClusterName=test
SlurmctldHost={host}({network}.254)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskPluginParam=Cores
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
JobRequeue=1
KillWait=10
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=node[1-{nodes}] NodeAddr={network}.[1-{nodes}] CPUs={cpus} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=patient Nodes=ALL GraceTime=60 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 State=UP
"""


def missing() -> str:
    """The reason why no cluster can be started here; empty if one can."""
    absent = [program for program in NEEDED if _find(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge, iproute2)"
    allowed = subprocess.run([*NAMESPACES, "--net", "true"], stderr=subprocess.DEVNULL).returncode == 0
    return "" if allowed and os.geteuid() == 0 else "starting Slurm's nodes takes root and namespaces"


class Node:
    """A node of the cluster, with two Linux network interfaces: ``lo`` and ``eth0``."""

    def __init__(self, name: str, namespace: str, folder: Path) -> None:
        self.name, self.namespace, self.folder = name, namespace, folder
        self.start()

    def start(self) -> None:
        """Start the node, for the first time or after :meth:`kill`."""
        script = f"hostname {self.name}; mount --bind {self.folder}/hosts /etc/hosts; {_find('slurmd')} -D; true"
        command = ["nsenter", f"--net=/run/netns/{self.namespace}", *NAMESPACES, "sh", "-c", script]
        with open(self.folder / f"{self.name}.out", "a") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def kill(self) -> None:
        """End all processes of the node at once."""
        self._process.kill()
        self._process.wait(20)
        wait_until(lambda: not output("ip", "netns", "pids", self.namespace), 20)


@contextlib.contextmanager
def cluster(nodes: int, cpus: int) -> Iterator[list[Node]]:
    """Run a cluster and set ``SLURM_CONF`` for Slurm's commands; yield the nodes, which have ``cpus`` each."""
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # a short path, since the path of a socket has a limit
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    network = f"198.18.{os.getpid() % 256}"  # of the addresses for tests
    host = socket.gethostname().partition(".")[0]
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    settings = SETTINGS.format(folder=folder, host=host, network=network, port=port, nodes=nodes, cpus=cpus)
    (folder / "slurm.conf").write_text(settings)
    hosts = [f"{network}.{number} node{number}\n" for number in range(1, nodes + 1)]
    (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *hosts]))
    munge = ["--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        before = os.environ.get("SLURM_CONF")
        stack.callback(lambda: os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        namespaces = stack.enter_context(_network(network, nodes))
        for name, options in {"munged": munge, "slurmctld": ["-D"]}.items():
            with open(folder / f"{name}.out", "w") as out:
                daemon = subprocess.Popen([str(_find(name)), *options], stdout=out, stderr=out, start_new_session=True)
            stack.callback(daemon.wait, 20)
            stack.callback(daemon.kill)
            wait_until((folder / "munge.socket").exists, 20)
        started = []
        for number, namespace in enumerate(namespaces, 1):
            started.append(Node(f"node{number}", namespace, folder))
            stack.callback(started[-1].kill)
        wait_until(lambda: output("sinfo", "-h", "-o", "%D %t") == f"{nodes} idle", 60)
        yield started


@contextlib.contextmanager
def _network(network: str, nodes: int) -> Iterator[list[str]]:
    """Connect this machine (address 254) and a network namespace for each node (1, 2, ...); yield the namespaces."""
    bridge = f"slurm{os.getpid()}"
    namespaces = [f"{bridge}n{number}" for number in range(1, nodes + 1)]
    try:
        _ip(f"link add {bridge} type bridge")
        _ip(f"address add {network}.254/24 dev {bridge}")
        _ip(f"link set {bridge} up")
        for number, name in enumerate(namespaces, 1):
            _ip(f"netns add {name}")
            _ip(f"link add {name} master {bridge} up type veth peer name eth0 netns {name}")
            _ip(f"-n {name} address add {network}.{number}/24 dev eth0")
            _ip(f"-n {name} link set eth0 up")
            _ip(f"-n {name} link set lo up")
        yield namespaces
    finally:
        for name in namespaces:
            output("ip", "netns", "delete", name)
        output("ip", "link", "delete", bridge)


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


def output(*command: str) -> str:
    """Output of a command; empty if it fails."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    """Wait until ``condition`` returns something true; raise TimeoutError after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition was false for {seconds} s")
        time.sleep(0.05)


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
