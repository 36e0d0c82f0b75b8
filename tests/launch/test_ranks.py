"""The ranks of a run: they are DDP's, no other machine can connect to them, and one that fails ends all of them."""

import multiprocessing
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ssl_bench.config.compose import directory, load
from ssl_bench.errors import RunError
from ssl_bench.launch import ranks
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.workers import carry_out
from ssl_bench.training.engine import Training
from ssl_bench.training.step import Stepper
from tests.conftest import SMALL
from tests.ranks import PRELOADED, Command, free_port, on_two_ranks, wait_for

multiprocessing.set_forkserver_preload(PRELOADED)
CONFIG = {"devices": 2, "timeout": 60}

# ---- what the ranks are


def networks(rank: int) -> dict[str, set[type]]:
    """The types of what the loop trains with each framework, for two steps."""
    seen: set[type] = set()

    class Watched(Stepper):
        def compute(self, *arguments: Any) -> Any:
            seen.add(type(self.network))
            return super().compute(*arguments)

    found = {}
    for name in sorted(path.stem for path in (directory() / "framework").glob("*.yaml")):
        config = load([*SMALL, f"framework={name}", "batch_size.size=32", "dataset.size=12", "devices=2"])
        with patch("ssl_bench.training.engine.Stepper", Watched):
            step = Training(config, "0123456789", Path(), torch.device("cpu")).stepper()
            for _ in range(2):
                step(False)
        found[name], seen = seen, set()
    return found


@pytest.mark.slow
def test_every_framework_trains_under_torchs_ddp() -> None:
    for found in on_two_ranks(networks):
        assert len(found) > 12 and set(map(frozenset, found.values())) == {frozenset({DistributedDataParallel})}, found


def listeners(processes: list[psutil.Process]) -> set[str]:
    """The addresses at which the processes wait for connections."""
    return {c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}


@pytest.mark.slow
def test_no_other_machine_can_connect_to_the_ranks() -> None:
    # What a user sets for ranks of several machines.
    interface = next((name for name in psutil.net_if_addrs() if name != "lo"), "lo")
    command = Command("train", *SMALL, "epochs=400", "devices=2", environment={"GLOO_SOCKET_IFNAME": interface})
    wait_for(lambda: list(Path("outputs").glob("*/*/metrics.jsonl")))
    found = listeners([psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)])
    command.send_signal(15)
    command.wait()
    assert found == {"127.0.0.1"}  # gloo's


def kept_by(rank: int, port: int) -> set[str]:
    """Where rank 0 of several machines waits for the others."""
    store = ranks._store(f"127.0.0.2:{port}", rank, 1, 10)
    found = listeners([psutil.Process()])
    store.set("key", "value")
    return found if store.get("key") == b"value" else set()


def test_the_store_of_several_machines_listens_at_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_by(0, free_port()) == {"0.0.0.0"}  # the name of this machine leads to its loopback address
    create = socket.create_server
    monkeypatch.setattr(socket, "gethostbyname", lambda host: "198.18.0.1")
    monkeypatch.setattr(socket, "create_server", lambda at: create(("127.0.0.2", at[1])) if at[0] else pytest.fail())
    assert kept_by(0, free_port()) == {"127.0.0.2"}


# ---- the ends of ranks whose group hangs once one of them has failed, as NCCL's does; gloo stands in for it


def _fail(kind: str) -> None:
    """Train for a while; then rank 1 fails and rank 0 waits for it."""
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        raise {"known": RunError("a planted reason"), "unknown": KeyError("a planted bug")}[kind]
    while True:
        dist.all_reduce(torch.ones(1))


def _hang(*_: object) -> None:
    time.sleep(600)


def _planted(kind: str, work: Callable[..., Outcome], *arguments: Any, **options: Any) -> Outcome:
    """Carry out a rank that must not leave the group or free its memory."""
    torch.set_num_threads(1)
    with (
        patch.object(ranks, "train", lambda *_: _fail(kind)),
        patch.object(ranks, "leave", _hang),
        patch.object(ranks, "release_memory", _hang),
        patch.object(ranks, "_may_hang", lambda device: dist.get_world_size() > 1),
    ):
        return work(*arguments, **options)


def started_here(kind: str, folder: Path) -> Outcome:
    places = [{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2} for rank in range(2)]
    calls = {
        f"rank {n}": (kind, ranks._rank, places[n], CONFIG, "id", folder, True, folder / "store") for n in range(2)
    }
    return carry_out(_planted, calls)


@pytest.mark.slow
def test_a_failure_of_a_rank_ends_all_with_its_sentence_or_its_traceback(tmp_path: Path) -> None:
    known, unknown = tmp_path / "known", tmp_path / "unknown"
    for folder in (known, unknown):
        folder.mkdir()
    assert started_here("known", known) == Outcome.failed("a planted reason")
    outcome = started_here("unknown", unknown)
    assert (outcome.state, outcome.code) == (State.FAILED, 1)
    assert outcome.reason == "rank 1 failed: KeyError: 'a planted bug'" and "_fail" in outcome.detail
