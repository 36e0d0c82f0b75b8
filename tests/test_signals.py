"""A signal stops a run between two batches of its evaluation, once everything is saved; it is never lost."""

import signal

import pytest
import torch

from ssl_bench.errors import RunError
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.signals import Interrupt, Interrupted, stop_if_asked


class Dies:
    """Sends a signal where Python ignores the exceptions of handlers."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_a_destructor_stops_an_evaluation_after_its_batch() -> None:
    features, labels = torch.rand(8, 2), torch.arange(8) % 2
    with pytest.raises(Interrupted, match="SIGTERM") as stop, Interrupt(int) as interrupt:
        stop_if_asked()
        Dies()
        stop_if_asked()  # nothing is saved yet
        assert interrupt.agreed() == signal.SIGTERM
        interrupt.saved = True
        LinearProbe(epochs=1).fit(features, labels, [(0.1, 0.0)], 2, torch.Generator(), torch.arange(8))
    assert stop.value.exit_code == 143
    # Further signals change nothing.
    with pytest.raises(Interrupted), Interrupt(int) as interrupt:
        for _ in range(4):
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.agreed() == signal.SIGTERM
    stop_if_asked()


def test_a_signal_to_which_the_block_has_not_reacted_stops_what_comes_next() -> None:
    with pytest.raises(Interrupted, match="SIGHUP") as stop, Interrupt(int):
        signal.raise_signal(signal.SIGHUP)
    assert stop.value.exit_code == 129
    with pytest.raises(Interrupted, match="SIGTERM"), Interrupt(int):
        signal.raise_signal(signal.SIGTERM)
        raise RunError("the next run of a grid would start")
    with Interrupt(int) as interrupt:
        interrupt.ask(signal.SIGTERM)  # which is no signal
