"""Damaged and malicious files, and a check of how they are read.

A file is read right, or refused in one sentence that names it, within bounds of time and memory; no code in it is run.
"""

import os
import random
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ssl_bench.errors import ConfigError, RunError

SEED = 67  # of all random damage
MEMORY, SECONDS = 2**31, 20  # bounds for reading one file on a busy machine, with the address space of threads
MARKER = "HACKED"  # the file that a payload makes


class Payload:
    """Makes the marker when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {MARKER}",)


def large(path: Path, start: bytes = b"") -> None:
    """Make a file of 64 GiB that takes no space."""
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(2**36)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


# Makers of what is not a regular file, or too large: reading it would wait, not end, or take all memory.
PLACES: dict[str, Callable[[Path], Any]] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "endless zeros": lambda path: path.symlink_to("/dev/zero"),
    "endless noise": lambda path: path.symlink_to("/dev/urandom"),
    "nothing": lambda path: path.symlink_to(os.devnull),
    "socket": a_socket,
    "64 GiB": large,
}


def variants(content: bytes, seed: int, count: int = 60) -> list[tuple[str, bytes]]:
    """``content`` cut at random places, and with up to eight bytes changed each, with a description."""
    generator = random.Random(seed)
    made = [(f"seed {seed}, cut at {at}", content[:at]) for at in generator.choices(range(len(content)), k=count)]
    for number in range(count):
        changed = bytearray(content)
        for _ in range(generator.randint(1, 8)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        made.append((f"seed {seed}, change {number}", bytes(changed)))
    return made


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """The sentence with which a call is refused and None, or "" and its result; any other exception fails the test."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    before, start = resource.getrlimit(resource.RLIMIT_AS), time.monotonic()
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        said, value = "", call()
    except (ConfigError, RunError) as error:
        said, value = str(error), None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.monotonic() - start < SECONDS
    assert not Path(MARKER).exists()
    if said:
        assert said.isprintable() and len(said) < 5000, said
    return said, value
