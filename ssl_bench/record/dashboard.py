"""A run's rows in another program: the interface of W&B, TensorBoard and plugins, and the configuration for them.

The configuration is flat and has the names of the command line:

=======================================  =========================================================================
``loss``, ``negatives``, ``dataset`` ..  the chosen option of every group, such as ``infonce``
``loss.alpha``, ``temperature.tau``,     every other value of the resolved configuration, without ``paths`` and
``batch_size.size``, ``seed`` ..         ``tracking``
``batch_size``                           the size, as ``batch_size.size``
``negatives.k``                          the number of negatives per anchor, also where the batch size determines it:
                                         2N - 2 under ``in_batch``
``facts.lr``, ``facts.parameters`` ..    the facts of ``results.json``
=======================================  =========================================================================
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.record import runs

log = logging.getLogger(__name__)


class Dashboard(ABC):
    """One run in another program, opened with its first row. A failure there never stops or changes the run.

    A subclass in a package of your own (conf/README.md has one) has ``open``, ``show`` and ``end``. Its constructor may
    have arguments of its own, which are keys of ``tracking``, and passes those below on.

    Args:
        folder: the run's directory.
        config: its resolved configuration.
        run_id: its identity.
        facts: facts of the run, as in ``results.json``.
        lines: rows of ``metrics.jsonl`` from earlier processes.

    Attributes:
        name: of the other program, for sentences about it.
    """

    name = "the dashboard"

    def __init__(
        self, folder: Path, config: Mapping[str, Any], run_id: str, facts: Mapping[str, Any], lines: Sequence[str]
    ) -> None:
        self.folder, self.config, self.run_id, self.facts, self.lines = folder, config, run_id, facts, lines
        self._number = len(lines)  # of the next row
        self._client: Any = None
        self._failed = False

    def row(self, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        """Show one row, with PNG files by name as ``figures/<name>``."""
        self._attempt(lambda client: self.show(client, self._number, row, pictures))
        self._number += 1

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """End the run: 0 finished, 128 + n preempted by signal n, anything else failed.

        Args:
            summary: metrics of a finished run.
        """
        if self._client is not None:
            self._attempt(lambda client: self.end(client, summary, exit_code))

    def _attempt(self, action: Callable[[Any], None]) -> None:
        """Call ``action`` with the client; after a first failure, the other program is not used any more."""
        if self._failed:
            return
        try:
            # The client is imported and started with the first row, so that it does not delay the first step.
            if self._client is None:
                self._client = self.open()
            action(self._client)
        except Exception as error:  # the clients raise many kinds of errors, and none may fail the run
            self._failed = True
            say_failed(self.name, error)

    @abstractmethod
    def open(self) -> Any:
        """Start the client, show the earlier rows (``lines``) that the other program lacks, and return the client."""

    @abstractmethod
    def show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        """Show a row.

        Args:
            client: what :meth:`open` has returned.
            number: of the row in ``metrics.jsonl``, from 0.
            pictures: PNG files by name.
        """

    @abstractmethod
    def end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        """Show how the run ended, as :meth:`finish` says, and stop the client."""


def say_failed(name: str, error: Exception) -> None:
    """Warn that a dashboard has failed."""
    sentence = "%s failed and is not used any more in this run; metrics.jsonl has all rows: %s"
    log.warning(sentence, name, " ".join(str(error).split()))


def flat_config(config: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run, as described at the head of this file."""
    flat = runs.flat({**config, "facts": facts})
    if "negatives_per_anchor" in facts:
        flat["negatives.k"] = facts["negatives_per_anchor"]
    return flat
