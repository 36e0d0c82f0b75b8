"""Outcomes: the exit codes, and a sentence for too little memory."""

import signal
from pathlib import Path

import torch

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.ranks import compute


def test_exit_codes_and_states() -> None:
    assert Outcome(State.DONE).code == 0 and Outcome(State.DONE_BEFORE).code == 0
    assert Outcome.failed("reason") == Outcome(State.FAILED, 1, "reason")
    assert Outcome.failed("reason", 2, "detail") == Outcome(State.FAILED, 2, "reason", "detail")
    stopped = Outcome.interrupted(signal.SIGTERM)
    assert (stopped.state, stopped.code, stopped.signal) == (State.INTERRUPTED, 143, signal.SIGTERM)
    assert [state for state in State if Outcome(state).finished] == [State.DONE, State.DONE_BEFORE]


def test_a_computation_without_enough_memory_has_one_sentence(tmp_path: Path) -> None:
    outcome = compute(lambda config: {"bytes": torch.empty(2**52).sum().item()}, {}, "0123456789", tmp_path)
    assert outcome.reason.startswith("out of memory on cpu: ") and not outcome.detail
    assert outcome.reason.endswith("Set a smaller batch_size.size or more devices") and outcome.code == 1
