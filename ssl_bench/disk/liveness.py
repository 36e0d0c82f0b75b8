"""Which processes still run: those of this machine since its start, told apart from later ones with their PID."""

import contextlib
import os
import socket
from functools import cache
from pathlib import Path


@cache
def machine() -> str:
    """Identity of this machine since its start, and of the PID namespace, which containers have of their own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # only Linux has these
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def start_time(pid: int) -> str | None:
    """Start time of a process, which distinguishes it from a later one with the same PID; "" if there is none.

    None if there is one and its start time cannot be read: not on Linux, or it is hidden from this user.
    """
    if not 0 < pid < 2**31:
        return ""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return None


def alive(pid: int, born: str | None) -> bool:
    """Whether the process of this machine with that PID and start time may still run."""
    now = start_time(pid)
    return now is None or now == born
