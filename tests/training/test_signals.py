"""Signals that arrive in a destructor or in a weak reference's callback, where Python ignores exceptions."""

import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from ssl_bench.training.interrupt import Interrupt
from ssl_bench.training.signals import Interrupted, none_ignored


class Object:
    """Can be referred to weakly."""


def in_destructor(send: Callable[[], None]) -> None:
    dies = type("Dies", (), {"__del__": lambda _: send()})()
    del dies


def in_callback(send: Callable[[], None]) -> None:
    watched = Object()
    reference = weakref.ref(watched, lambda _: send())
    del watched
    assert reference() is None


PLACES = pytest.mark.parametrize("place", [in_destructor, in_callback])


@PLACES
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_it_stops_an_evaluation(
    number: signal.Signals, place: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    former = sys.unraisablehook
    with pytest.raises(Interrupted, match=number.name) as stop, Interrupt() as interrupt:
        interrupt.at_once = True
        place(lambda: signal.raise_signal(number))
        time.sleep(20)
    assert stop.value.number == number
    assert sys.unraisablehook is former
    assert capsys.readouterr() == ("", "")


@PLACES
def test_it_stops_a_command(place: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]) -> None:
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), none_ignored():
            place(lambda: signal.raise_signal(signal.SIGINT))
            time.sleep(20)
    finally:
        signal.signal(signal.SIGINT, former)
    assert capsys.readouterr() == ("", "")


def test_other_ignored_errors_reach_the_former_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: seen.append(ignored.exc_type))
    with none_ignored():
        in_destructor(lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    assert seen == [ZeroDivisionError]
