"""Commands in an environment that is odd: its variables, its encoding, its permissions."""

import contextlib
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssl_bench.config.compositions import compositions
from ssl_bench.launch import ranks
from ssl_bench.launch.nodes import Nodes, nodes, restarted
from tests.door.door import enter, refuses

Capture = pytest.CaptureFixture[str]
Train = Callable[..., tuple[int, str]]

# Variables and a command, with the sentence of its refusal.
REFUSED = [
    ("RANK=1", "train seed=-1", "seed=-1: set seed to 0 or more"),
]


@pytest.mark.parametrize(("variables", "command", "says"), REFUSED)
def test_a_variable_of_another_command_is_refused(
    variables: str, command: str, says: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    refuses(command, says, capfd)


@pytest.mark.parametrize(
    "variable", ["SUBMITIT_EXECUTOR=slurm", "SLURM_JOB_NUM_NODES=abc", "SLURM_JOB_NUM_NODES=2", "SLURM_RESTART_COUNT="]
)
def test_a_variable_of_slurm_alone_is_no_job_of_slurm(
    variable: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable.split("="))
    assert (nodes(), restarted()) == (Nodes(), False)
    code, printed = train("max_steps=1")
    assert code == 0, printed


def test_a_user_without_a_home_directory_keeps_no_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    ((config,),) = [compositions([("train", ("loss=dcl",))]).values()]
    assert config.config(3)["seed"] == 3
    assert not list(Path().iterdir())


def test_a_read_only_memory_of_processes_is_not_taken_for_the_results_folder(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(30, "Read-only file system")  # what a semaphore in /dev/shm raises, without a name

    monkeypatch.setattr(ranks, "launch", fails)
    code, printed = train("max_steps=1")
    line = (
        "ssl-bench: what the processes share in /dev/shm or TMPDIR: Read-only file system; after fixing that, the same"
    )
    assert (code, printed.splitlines()[-1]) == (1, f"{line} command resumes")


# ---- the files of other users


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Make this process another user's, if it is the administrator's, who may read everything."""
    user = os.geteuid()
    try:
        os.seteuid(65534 if user == 0 else user)
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("hidden", ["", "config.yaml", "results.json"])
def test_what_may_not_be_read_is_named(hidden: str, train: Train, capfd: Capture, tmp_path: Path) -> None:
    assert train("max_steps=1")[0] == 0
    (run,) = Path("outputs/default").iterdir()
    if hidden == "config.yaml":
        (run / "results.json").unlink()
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    enter("status", capfd), enter("report", capfd)  # import what another user may not import
    (run / hidden).chmod(0)
    with another_user():
        status, report = enter("status", capfd), enter("report", capfd)
    (run / hidden).chmod(0o755)
    says = f"ssl-bench: {run / hidden}: Permission denied; runs in there are missing or incomplete\n"
    assert (status.code, status.err) == (0, says)
    assert report.err.startswith(says)


OUTPUTS = "outputs of the network ({}) are not finite: a smaller optimizer.lr may help"
# What the last update of a run breaks, after its loss was computed.
BROKEN = {
    "optimizer.lr=1e32 max_steps=1": OUTPUTS.format("backbone"),
    "optimizer.weight_decay=1e32 max_steps=1": OUTPUTS.format("backbone"),
    "optimizer.lr=1e39 max_steps=1": "the weights are not finite after step 1 (lr 2.5e+38): a smaller optimizer.lr or",
}


@pytest.mark.parametrize("change", BROKEN)
def test_a_network_that_the_last_step_breaks_is_named(change: str, train: Train) -> None:
    code, printed = train("max_steps=2", "optimizer.warmup_epochs=0", "evaluate=[knn]", *change.split())
    assert code == 1 and "Traceback" not in printed
    assert printed.splitlines()[-1].startswith(f"ssl-bench: {BROKEN[change]}"), printed
