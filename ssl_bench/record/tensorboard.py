"""TensorBoard: a view of a run's files, in ``<run>/tensorboard/``. A failure here never stops or changes a run.

``tensorboard --logdir outputs`` shows every run by its directory: the curves over the steps, the plots of the
evaluation under ``figures/``, shares of bins as histograms, and the configuration under HPARAMS, where runs are
compared by their metrics. ``epoch``, which is proportional to the step, is not shown. A process that resumes a run
writes a file of its own, whose beginning hides the later rows of earlier files: they are computed again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_bench.errors import shown
from ssl_bench.record.dashboard import Dashboard, flat_config


class TensorBoardRun(Dashboard):
    """One run in TensorBoard."""

    name = "TensorBoard"

    def _open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # heavy: only where it is used
        from torch.utils.tensorboard.summary import hparams

        done = json.loads(self.lines[-1])["step"] if self.lines else -1
        writer: Any = SummaryWriter(str(self.folder / "tensorboard"), purge_step=done + 1)
        flat = flat_config(self.config, self.facts).items()
        values = {name: value if type(value) in (int, float) else shown(value) for name, value in flat}
        # SummaryWriter.add_hparams would write the metrics again, to a run of its own.
        writer.file_writer.add_summary(hparams(values, {})[1])
        return writer

    def _show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        step = row["step"]
        for name, value in row.items():
            if isinstance(value, list):
                _add_shares(client, name, value, step)
            elif name not in ("step", "epoch"):
                client.add_scalar(name, value, step)
        for name, path in pictures.items():
            import numpy as np
            from PIL import Image

            with Image.open(path) as picture:
                client.add_image(f"figures/{name}", np.asarray(picture.convert("RGB")), step, dataformats="HWC")
        client.flush()  # the file lacks no row if the run is killed

    def _end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        from torch.utils.tensorboard.summary import hparams

        if exit_code == 0:  # without an end, a run that was stopped or failed does not count as a success
            client.file_writer.add_summary(hparams({}, {})[2])
        client.close()


def _add_shares(client: Any, name: str, shares: list[float], step: int) -> None:
    """Add a list of shares of equal bins from 0 to 1 as a histogram."""
    limits = [(i + 1) / len(shares) for i in range(len(shares))]
    centres = [limit - 0.5 / len(shares) for limit in limits]
    total = sum(share * centre for share, centre in zip(shares, centres, strict=True))
    squares = sum(share * centre**2 for share, centre in zip(shares, centres, strict=True))
    client.add_histogram_raw(name, 0.0, 1.0, sum(shares), total, squares, limits, shares, step)
