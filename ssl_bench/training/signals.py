"""The signals that stop a run: it saves its state and ends with the code 128 + n."""

import signal

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)  # Slurm sends SIGUSR2 before the time limit
# Exit codes of stopped processes: after saving their state, or by the signal itself, before they listened to it.
STOPPED = {code: number for number in STOPS for code in (128 + number, -number)}


def stops() -> list[signal.Signals]:
    """The signals that stop this process: not SIGHUP if it is ignored, as ``nohup`` has it."""
    hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOPS if number != signal.SIGHUP or not hangup_ignored]
