"""What a run says: on standard output and in ``train.log``."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("ssl_bench")


class _File(logging.FileHandler):
    """A log whose failure is the run's failure: a full disk is told once, not for every line."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # the error that is being handled


@contextlib.contextmanager
def journal(folder: Path | None, quiet: bool = False) -> Iterator[None]:
    """Sends the package's messages to ``train.log`` in ``folder`` and, unless ``quiet``, to the terminal.

    None: nowhere (other ranks).
    """
    if folder is None:
        log.setLevel(logging.ERROR)
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    console, file = logging.StreamHandler(sys.stdout), _File(folder / "train.log")
    console.setFormatter(logging.Formatter("%(message)s"))
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers[:] = [file] if quiet else [console, file]
    try:
        yield
    finally:
        log.handlers.clear()
        with contextlib.suppress(OSError):
            file.close()
