"""One process has a run at a time: also when many want it at once, and when one that had it is gone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ssl_bench.launch.claim import Claim, Owner, owner

# Takes the run, works for a moment on the file of results unless that is done, and gives the run back.
WORKER = """
import sys, time
from pathlib import Path
from ssl_bench.launch.claim import Claim
claim, log, results = Claim(Path("run")), Path("log"), Path("run/results.json")
claim.wait(lambda owner: None)
if not results.exists():
    with open(log, "a") as file: file.write("begin\\n")
    time.sleep(0.3)
    results.write_text("{}")
    with open(log, "a") as file: file.write("end\\n")
claim.release(results.exists())
"""
# Wants a hundred runs, each at the same moment as everybody else, and keeps what it gets.
RACER = """
import sys, time
from pathlib import Path
from ssl_bench.launch.claim import Claim
begin, got = float(sys.argv[1]), []
for number in range(100):
    claim = Claim(Path(f"run{number}"))
    while time.time() < begin + 0.02 * number: pass
    if claim.take() is None: got.append(number)
print(*got, flush=True)
sys.stdin.read()
"""
HOLDER = """
import time
from pathlib import Path
from ssl_bench.launch.claim import Claim
assert Claim(Path("run")).take() is None
print("has it", flush=True)
time.sleep(60)
"""


def start(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def elsewhere(number: int) -> Path:
    """The claim of a process on another machine."""
    path = Path(f"run/claims/{number}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(replace(Owner.me(), host="node7", pid=4711, machine="node7/boot/pid"))))
    return path


def test_of_twenty_that_start_at_once_one_does_the_work() -> None:
    for process in [start(WORKER) for _ in range(20)]:
        with process:
            assert process.wait(60) == 0
    assert Path("log").read_text().split() == ["begin", "end"]
    assert not Path("run/claims").exists()


def test_a_run_that_many_want_at_the_same_moment_is_ones() -> None:
    begin = str(time.time() + 1.5)  # when all have been started
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([sys.executable, "-c", RACER, begin], **options) for _ in range(6)]
    got = [int(number) for racer in racers if racer.stdout for number in racer.stdout.readline().split()]
    for racer in racers:
        racer.communicate()
    assert sorted(got) == list(range(100))


def test_who_is_killed_loses_the_run_at_once() -> None:
    with start(HOLDER) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "has it\n"
        claim = Claim(Path("run"))
        found = claim.take()
        assert found is not None and (found.pid, found.host) == (holder.pid, Owner.me().host)
        assert found == owner(Path("run"))
        assert str(found.pid) in str(found) and found.host in str(found)
        os.kill(holder.pid, signal.SIGKILL)
        while Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)  # nobody has waited for it yet: a zombie has nothing any more
        assert owner(Path("run")) is None
        assert claim.take() is None and claim.number == 2
        mine = owner(Path("run"))
        assert mine is not None and mine.pid == os.getpid()
        claim.release(finished=False)
    assert owner(Path("run")) is None
    again = Claim(Path("run"))
    assert again.take() is None and again.number == 3  # a number is never used twice
    again.release(finished=True)
    assert not Path("run/claims").exists()


def test_a_process_number_that_is_used_again_has_nothing() -> None:
    claim = Path("run/claims/1")
    claim.parent.mkdir(parents=True)
    claim.write_text(json.dumps(asdict(replace(Owner.me(), born="1"))))
    assert Claim(Path("run")).take() is None


def test_an_owner_elsewhere_lives_as_long_as_it_touches_its_claim() -> None:
    path, claim = elsewhere(1), Claim(Path("run"), lease=0.5)
    for _ in range(4):
        found = claim.take()
        assert found is not None and found.host == "node7"
        time.sleep(0.2)
        os.utime(path)
    assert claim.take() is not None
    time.sleep(0.6)
    assert claim.take() is None and claim.number == 2


def test_a_claim_that_is_not_written_yet_counts_until_its_time_is_up() -> None:
    Path("run/claims").mkdir(parents=True)
    Path("run/claims/1").touch()
    claim = Claim(Path("run"), lease=0.3)
    assert str(claim.take()).startswith("another process")
    time.sleep(0.4)
    assert claim.take() is None


def test_who_was_given_up_ends_without_another_word() -> None:
    code = "import ssl_bench.launch.claim as c; c.BEAT = 0.1\n" + HOLDER
    with start(code) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "has it\n"
        elsewhere(2)
        assert holder.wait(10) == 1


def test_status_compares_the_last_touch_with_the_clock() -> None:
    path = elsewhere(1)
    found = owner(Path("run"))
    assert found is not None and found.host == "node7"
    os.utime(path, (time.time() - 200, time.time() - 200))
    assert owner(Path("run")) is None


def test_a_disk_that_is_full_does_not_hide_how_a_run_ended() -> None:
    claim = Claim(Path("run"))
    assert claim.take() is None
    shutil.rmtree("run")
    Path("run").touch()  # nothing can be written below it
    claim.release(finished=False)
