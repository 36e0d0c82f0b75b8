"""Commands in an environment that is odd: its variables, its encoding, its permissions."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("variable", ["SUBMITIT_EXECUTOR=slurm", "SLURM_JOB_NUM_NODES=2", "SLURM_RESTART_COUNT="])
def test_a_variable_of_slurm_alone_is_no_job_of_slurm(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    assert (nodes(), restarted()) == (Nodes(), False)


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


def test_what_may_not_be_read_is_named(train: Train, capfd: Capture, tmp_path: Path) -> None:
    assert train("max_steps=1")[0] == 0
    (run,) = Path("outputs/default").iterdir()
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    enter("status", capfd), enter("report", capfd)  # import what another user may not import
    run.chmod(0)
    with another_user():
        status, report = enter("status", capfd), enter("report", capfd)
    run.chmod(0o755)
    says = f"ssl-bench: {run}: Permission denied; runs in there are missing or incomplete\n"
    assert (status.code, status.err) == (0, says)
    assert report.err.startswith(says)


# What the last update of a run breaks, after its loss was computed.
BROKEN = {
    "optimizer.lr=1e32": "outputs of the network (backbone) are not finite: a smaller optimizer.lr may help",
    "optimizer.lr=1e39": "the weights are not finite after step 1 (lr 2.5e+38): a smaller optimizer.lr or",
}


@pytest.mark.parametrize("change", BROKEN)
def test_a_network_that_the_last_step_breaks_is_named(change: str, train: Train) -> None:
    code, printed = train("max_steps=1", "optimizer.warmup_epochs=0", "evaluate=[knn]", change)
    assert code == 1 and "Traceback" not in printed
    assert printed.splitlines()[-1].startswith(f"ssl-bench: {BROKEN[change]}"), printed
