"""The log of a run: messages to the terminal and to ``train.log``."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from ssl_bench import files

log = logging.getLogger("ssl_bench")


class _LogFile(logging.FileHandler):
    """A log file whose write errors fail the run, so that a full disk is reported once and not for every line."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # the error that is being handled


def is_quiet() -> bool:
    """Whether messages go to a file only, because other runs share the terminal."""
    return bool(log.handlers) and all(isinstance(handler, _LogFile) for handler in log.handlers)


@contextlib.contextmanager
def logging_to(folder: Path | None, quiet: bool = False) -> Iterator[None]:
    """Send the package's messages to ``train.log`` in ``folder`` and, unless ``quiet``, to the terminal.

    With ``folder`` None, for all ranks but rank 0, only errors are shown.
    """
    if folder is None:
        log.setLevel(logging.ERROR)
        yield
        return
    files.make_folder(folder)
    console, path = logging.StreamHandler(sys.stdout), files.of_run(folder / "train.log")
    file = files.retry(lambda: _LogFile(path, encoding="utf-8", errors="backslashreplace"), path)
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
