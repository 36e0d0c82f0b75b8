"""The ends of ranks whose group hangs once one of them has failed, as NCCL's does; gloo stands in for it."""

import atexit
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from ssl_bench.errors import RunError
from ssl_bench.launch import ranks
from tests.ranks import PRELOADED, free_port

multiprocessing.set_forkserver_preload(PRELOADED)
CONFIG = {"devices": 2, "timeout": 60}
NOT_REACHED = 77


def _fail(kind: str) -> None:
    """Train for a while; then rank 1 fails and rank 0 waits for it."""
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        raise {"known": RunError("a planted reason"), "unknown": KeyError("a planted bug")}[kind]
    while True:
        dist.all_reduce(torch.ones(1))


def _hang(*_: object) -> None:
    time.sleep(600)


def _process(rank: int, kind: str, outer: bool, folder: Path, port: int) -> None:
    """A rank started here, or one of an outer torchrun, that must not leave the group or free its memory."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "TORCHELASTIC_ERROR_FILE": str(folder / f"{rank}.json")}
    with (
        patch.object(ranks, "train", lambda *_: _fail(kind)),
        patch.object(ranks, "leave", _hang),
        patch.object(ranks, "release_memory", _hang),
        patch.object(ranks, "_may_hang", lambda device: dist.get_world_size() > 1),
    ):
        if not outer:
            ranks._rank(CONFIG, "id", folder, True, os.getppid())
        try:
            ranks.launch(CONFIG, "id", folder, torchrun=True)
        finally:
            atexit._run_exitfuncs()  # as Python does at the end of a command
    os._exit(NOT_REACHED)


def both(kind: str, outer: bool, folder: Path) -> tuple[list[int | None], list[dict[str, Any]]]:
    """Exit codes and reports of two ranks, which end within seconds."""
    context, port = multiprocessing.get_context("forkserver"), free_port()
    processes = [context.Process(target=_process, args=(rank, kind, outer, folder, port)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()  # nothing to a process that has ended
    files = [folder / f"{rank}.json" for rank in range(2)]
    return [p.exitcode for p in processes], [json.loads(f.read_text()) if f.exists() else {} for f in files]


@pytest.mark.slow
@pytest.mark.parametrize("outer", [False, True], ids=["started here", "torchrun"])
def test_a_known_failure_of_a_rank_ends_both_with_a_sentence_and_no_clean_up(outer: bool, tmp_path: Path) -> None:
    codes, reports = both("known", outer, tmp_path)
    assert codes == [1, 1]
    assert reports[1]["message"] == "ssl-bench: a planted reason"
    assert reports[0]["message"].startswith("ssl-bench: rank 0 has lost the others (")
    assert reports[0]["timestamp"] > reports[1]["timestamp"]  # elastic shows the earliest, the cause


@pytest.mark.slow
@pytest.mark.parametrize("outer", [False, True], ids=["started here", "torchrun"])
def test_an_unknown_failure_of_a_rank_ends_both_with_its_traceback(outer: bool, tmp_path: Path) -> None:
    codes, reports = both("unknown", outer, tmp_path)
    assert codes == [1, 1]
    assert reports[0]["message"].startswith("ssl-bench: rank 0 has lost the others (")
    if not outer:  # under torchrun Python prints it, as of any command
        assert reports[1]["message"]["message"] == "KeyError: 'a planted bug'"
        assert "_fail" in reports[1]["message"]["extraInfo"]["py_callstack"]


def test_only_nccl_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, device, hangs in ((1, "cuda", False), (2, "cpu", False), (2, "cuda", True)):
        monkeypatch.setattr(ranks, "world", lambda size=size: size)
        assert ranks._may_hang(torch.device(device)) == hangs


@pytest.mark.parametrize("hangs", [False, True])
def test_a_rank_leaves_the_group_unless_that_may_hang(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    register: Callable[..., Any] = lambda function, code: done.append((function, code))  # noqa: E731
    monkeypatch.setattr(ranks, "_may_hang", lambda device: hangs)
    monkeypatch.setattr(ranks, "leave", lambda: done.append("left"))
    monkeypatch.setattr(atexit, "register", register)
    ranks._leave_after(0, torch.device("cpu"))
    ranks._leave_after(2, torch.device("cpu"))
    assert done == ["left", (ranks._end_at_once, 2) if hangs else "left"]
