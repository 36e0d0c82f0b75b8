"""One process at a time carries out a run, also if many start at once or if the owner is killed."""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.disk.patience import NoAnswer
from ssl_bench.launch.lock import Lock, owner
from ssl_bench.record.claim import Claim, Owner

RUN = Path("run")
# Tries to take a hundred runs, each at the same moment as all other racers, and prints which it has taken.
RACER = """
import sys, time
from pathlib import Path
from ssl_bench.launch.lock import Lock
begin, taken = float(sys.argv[1]), []
for number in range(100):
    lock = Lock(Path(f"run{number}"))
    while time.time() < begin + 0.02 * number: pass
    if lock.take() is None: taken.append(number)
print(*taken, flush=True)
sys.stdin.read()
"""
# Takes the run and keeps it for a minute, or until another process takes over.
HOLDER = """
import time
from pathlib import Path
from ssl_bench.launch import lock
lock.BEAT = 0.1
assert lock.Lock(Path("run")).take() is None
print("taken", flush=True)
time.sleep(60)
"""


def start_holder() -> "subprocess.Popen[str]":
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "taken\n"
    return holder


def write_lock(number: int, **changes: Any) -> Path:
    """Write a lock as another process would; return its file."""
    path = RUN / "claims" / str(number)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(replace(Owner.this_process(), **changes))))
    return path


ELSEWHERE = {"host": "node7", "pid": 4711, "machine": "node7/boot/pid"}


@pytest.mark.slow
def test_each_run_is_taken_by_exactly_one_of_four_processes() -> None:
    begin = str(time.time() + 1.5)  # when all have been started
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([sys.executable, "-c", RACER, begin], **options) for _ in range(4)]
    taken = [int(number) for racer in racers if racer.stdout for number in racer.stdout.readline().split()]
    for racer in racers:
        racer.communicate()
    assert sorted(taken) == list(range(100))


def test_the_lock_of_a_killed_process_ends_at_once_and_no_number_is_used_twice() -> None:
    with start_holder() as holder:
        lock = Lock(RUN)
        current = lock.take()
        assert current is not None and (current.pid, current.host) == (holder.pid, Owner.this_process().host)
        assert current == owner(RUN) and f"{current.host} (process {current.pid})" in str(current)
        holder.kill()
        while Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)  # until it is a zombie, whose locks do not count
        assert owner(RUN) is None
        assert lock.take() is None and lock.claim == Claim(RUN.absolute() / "claims", 2)
        found = owner(RUN)
        assert found is not None and found.pid == os.getpid()
        lock.release(finished=False)
    assert owner(RUN) is None
    again = Lock(RUN)
    assert again.take() is None and again.claim == Claim(RUN.absolute() / "claims", 3)
    again.release(finished=True)
    assert not (RUN / "claims").exists()


def test_a_claim_that_cannot_be_written_is_gone_at_once() -> None:
    """Without its owner it would count as one of another machine, for which all others wait."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as if the disk were full
    try:
        with pytest.raises(OSError):
            Lock(RUN).take()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((RUN / "claims").iterdir())
    assert Lock(RUN).take() is None


def test_a_new_process_with_the_same_pid_is_not_the_owner() -> None:
    write_lock(1, born="1")
    assert Lock(RUN).take() is None


def test_an_owner_on_another_machine_keeps_its_lock_while_it_touches_it() -> None:
    path, lock = write_lock(1, **ELSEWHERE), Lock(RUN, lease=0.5)
    for _ in range(4):
        current = lock.take()
        assert current is not None and current.host == "node7"
        time.sleep(0.2)
        os.utime(path)
    assert lock.take() is not None
    time.sleep(0.6)
    assert lock.take() is None and lock.claim == Claim(RUN.absolute() / "claims", 2)


def test_time_in_which_the_file_system_does_not_answer_is_not_the_owners_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_lock(1, **ELSEWHERE)
    lock = Lock(RUN, lease=0.5)
    assert lock.take() is not None

    def no_answer(*given: object, **more: object) -> None:
        raise NoAnswer("the disk is away")

    with monkeypatch.context() as away:
        away.setattr("ssl_bench.launch.lock.files.read_json", no_answer)
        with pytest.raises(NoAnswer):
            lock.take()
        time.sleep(0.6)
    assert lock.take() is not None
    time.sleep(0.6)
    assert lock.take() is None


def test_a_process_whose_run_was_taken_over_exits() -> None:
    with start_holder() as holder:
        write_lock(2, **ELSEWHERE)
        assert holder.wait(10) == 1
