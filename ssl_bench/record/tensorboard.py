"""TensorBoard: a view of a run's files, in ``<run>/tensorboard/``. A failure here never stops or changes a run.

``tensorboard --logdir outputs`` shows every run by its directory: the curves over the steps, the plots of the
evaluation under ``figures/``, and the configuration under HPARAMS, where runs are compared by their metrics, and as
YAML under TEXT. ``epoch``, which is proportional to the step, and shares of bins are not shown. A process that resumes
a run writes a file of its own, whose beginning hides the later rows of earlier files: they are computed again.
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

    def open(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter  # heavy: only where it is used
        from torch.utils.tensorboard.summary import hparams

        done = json.loads(self.lines[-1])["step"] if self.lines else -1
        writer: Any = SummaryWriter(str(self.folder / "tensorboard"), purge_step=done + 1)
        flat = flat_config(self.config, self.facts).items()
        values = {name: value if type(value) in (int, float) else shown(value) for name, value in flat}
        # SummaryWriter.add_hparams would write the metrics again, to a run of its own.
        writer.file_writer.add_summary(hparams(values, {})[1])
        return writer

    def show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        step = row["step"]
        for name, value in row.items():
            if name not in ("step", "epoch") and not isinstance(value, list):
                client.add_scalar(name, value, step)
        for name, path in pictures.items():
            import numpy as np
            from PIL import Image

            with Image.open(path) as picture:
                client.add_image(f"figures/{name}", np.asarray(picture.convert("RGB")), step, dataformats="HWC")
        client.flush()  # the file lacks no row if the run is killed

    def end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        client.close()
