"""TensorBoard: a view of a run's files, in ``<run>/tensorboard/``. A failure here never stops or changes a run.

``tensorboard --logdir outputs`` shows every run by its directory: the curves over the steps, the plots of the
evaluation under ``figures/``, shares of bins as histograms, and the configuration under HPARAMS, where runs are
compared by their metrics. ``epoch``, which is proportional to the step, is not shown.

Every process that resumes a run writes all rows again to a file of its own and removes the files of earlier processes,
which may lack their last rows and may have rows that are computed again. The new file begins with a restart at step 0,
so that a TensorBoard that is open meanwhile forgets the earlier rows; with ``--load_fast=false`` it has to be started
again.

The time of a row is the time of the first row in this process, moved by the difference of their ``seconds``, which is
the time of training and evaluation without interruptions.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_bench.errors import shown
from ssl_bench.record.dashboard import Dashboard, flat_config

FLUSH = 15  # seconds


class TensorBoardRun(Dashboard):
    """One run in TensorBoard."""

    name = "TensorBoard"

    def row(self, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        self._now: float | None = row.get("seconds")  # rows of evaluations have none
        super().row(row, pictures)

    def _open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # heavy: only where it is used

        folder = self.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        earlier = list(folder.glob("events.out.tfevents.*"))
        writer = SummaryWriter(str(folder), purge_step=0, flush_secs=FLUSH)
        writer.flush()
        for path in earlier:
            path.unlink()
        self._add_hparams(writer)
        rows = [json.loads(line) for line in self.lines]
        *_, last = 0.0, *(row["seconds"] for row in rows if "seconds" in row)
        self._seconds, self._zero = 0.0, time.time() - (last if self._now is None else self._now)
        for number, row in enumerate(rows):
            self._show(writer, number, row, {})
        return writer

    def _show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard.summary import scalar

        self._seconds = row.get("seconds", self._seconds)
        summary = Summary()  # one for the whole row: a seventh of the time of one for each value
        for name, value in row.items():
            if name not in ("step", "epoch"):
                summary.MergeFrom(_shares(name, value) if isinstance(value, list) else scalar(name, value))
        for name, path in pictures.items():
            summary.MergeFrom(_picture(f"figures/{name}", path))
        client.file_writer.add_summary(summary, row["step"], self._zero + self._seconds)

    def _end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        from torch.utils.tensorboard.summary import hparams

        if exit_code == 0:  # without an end, a run that was stopped or failed does not count as a success
            client.file_writer.add_summary(hparams({}, {})[2])
        client.close()

    def _add_hparams(self, writer: Any) -> None:
        """The configuration; SummaryWriter.add_hparams would write it, and the metrics again, to a run of its own."""
        from torch.utils.tensorboard.summary import hparams

        flat = flat_config(self.config, self.facts).items()
        values = {name: value if type(value) in (int, float) else shown(value) for name, value in flat}
        writer.file_writer.add_summary(hparams(values, {})[1])


def _shares(name: str, shares: list[float]) -> Any:
    """A list of shares of equal bins from 0 to 1, as a histogram."""
    from torch.utils.tensorboard.summary import histogram_raw

    count = len(shares)
    centres = [(i + 0.5) / count for i in range(count)]
    total = sum(share * centre for share, centre in zip(shares, centres, strict=True))
    squares = sum(share * centre**2 for share, centre in zip(shares, centres, strict=True))
    limits = [(i + 1) / count for i in range(count)]
    return histogram_raw(name, 0.0, 1.0, sum(shares), total, squares, limits, shares)


def _picture(name: str, path: Path) -> Any:
    """A PNG file."""
    import numpy as np
    from PIL import Image
    from torch.utils.tensorboard.summary import image

    with Image.open(path) as picture:
        return image(name, np.asarray(picture.convert("RGB")), dataformats="HWC")
