"""Runs that the tests of damage have copies of."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ssl_bench import files
from ssl_bench.train import main
from tests.conftest import no_pictures
from tests.door.damage import GRID, PAPER, RUN, environment


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, one that failed, a grid of two losses and two seeds, and a paper whose table they fill."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("whole")
    os.chdir(folder)
    with no_pictures(), pytest.MonkeyPatch.context() as context:
        environment(context, folder)
        Path("papers").mkdir()
        Path("papers/tiny.yaml").write_text(yaml.safe_dump(PAPER))
        for words in ([*RUN, "name=r", "seed=7"], GRID, [*RUN, "name=failed", "seed=8"]):
            assert main(words) == 0
        (failed,) = Path("outputs/failed").iterdir()
        (failed / "results.json").unlink()
        files.write_json(failed / "failed.json", {"reason": "no", "detail": ""})
    os.chdir(before)
    yield folder
