"""One process at a time carries out a run, also if many start at once or if the owner is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.launch.claim import Claim, Owner, owner

# Tries to take a hundred runs, each at the same moment as all other racers, and prints which it has taken.
RACER = """
import sys, time
from pathlib import Path
from ssl_bench.launch.claim import Claim
begin, taken = float(sys.argv[1]), []
for number in range(100):
    claim = Claim(Path(f"run{number}"))
    while time.time() < begin + 0.02 * number: pass
    if claim.take() is None: taken.append(number)
print(*taken, flush=True)
sys.stdin.read()
"""
# Takes the run and keeps it for a minute.
HOLDER = """
import time
from pathlib import Path
from ssl_bench.launch.claim import Claim
assert Claim(Path("run")).take() is None
print("taken", flush=True)
time.sleep(60)
"""


def start(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def claim_of_another_machine(number: int) -> Path:
    """Write claim ``number`` as a process on another machine would; return its file."""
    path = Path(f"run/claims/{number}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(replace(Owner.this_process(), host="node7", pid=4711, machine="node7/boot/pid"))))
    return path


@pytest.mark.slow
def test_each_run_is_taken_by_exactly_one_of_four_processes() -> None:
    begin = str(time.time() + 1.5)  # when all have been started
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([sys.executable, "-c", RACER, begin], **options) for _ in range(4)]
    taken = [int(number) for racer in racers if racer.stdout for number in racer.stdout.readline().split()]
    for racer in racers:
        racer.communicate()
    assert sorted(taken) == list(range(100))


def test_the_claim_of_a_killed_process_ends_at_once() -> None:
    with start(HOLDER) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "taken\n"
        claim = Claim(Path("run"))
        current = claim.take()
        assert current is not None and (current.pid, current.host) == (holder.pid, Owner.this_process().host)
        assert current == owner(Path("run"))
        assert str(current.pid) in str(current) and current.host in str(current)
        os.kill(holder.pid, signal.SIGKILL)
        while Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)  # until it is a zombie, whose claims do not count
        assert owner(Path("run")) is None
        assert claim.take() is None and claim.number == 2
        new_owner = owner(Path("run"))
        assert new_owner is not None and new_owner.pid == os.getpid()
        claim.release(finished=False)
    assert owner(Path("run")) is None
    again = Claim(Path("run"))
    assert again.take() is None and again.number == 3  # a number is never used twice
    again.release(finished=True)
    assert not Path("run/claims").exists()


def test_a_new_process_with_the_same_pid_is_not_the_owner() -> None:
    claim = Path("run/claims/1")
    claim.parent.mkdir(parents=True)
    claim.write_text(json.dumps(asdict(replace(Owner.this_process(), born="1"))))
    assert Claim(Path("run")).take() is None


@pytest.mark.slow
def test_an_owner_on_another_machine_keeps_its_claim_while_it_touches_it() -> None:
    path, claim = claim_of_another_machine(1), Claim(Path("run"), lease=0.5)
    for _ in range(4):
        current = claim.take()
        assert current is not None and current.host == "node7"
        time.sleep(0.2)
        os.utime(path)
    assert claim.take() is not None
    time.sleep(0.6)
    assert claim.take() is None and claim.number == 2


def test_an_empty_claim_counts_until_its_lease_ends() -> None:
    Path("run/claims").mkdir(parents=True)
    Path("run/claims/1").touch()
    claim = Claim(Path("run"), lease=0.3)
    assert str(claim.take()).startswith("another process")
    time.sleep(0.4)
    assert claim.take() is None


def test_a_process_whose_run_was_taken_over_exits() -> None:
    code = "import ssl_bench.launch.claim as c; c.BEAT = 0.1\n" + HOLDER
    with start(code) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "taken\n"
        claim_of_another_machine(2)
        assert holder.wait(10) == 1
