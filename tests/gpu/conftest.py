"""Runs functions on GPUs: on this machine's, or else on a fake CUDA runtime (build.py).

The settings of the fake one are the variables FAKE_CUDA_* of runtime.c. Its kernels do nothing; with ``values`` their
results are computed all the same (values.py).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import build

REAL = torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    obstacle = "" if REAL else build.obstacle()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(600))
            if obstacle:
                item.add_marker(pytest.mark.skip(reason=f"there is no GPU, and no fake one: {obstacle}"))


@pytest.fixture
def gpu(pytestconfig: pytest.Config, tmp_path: Path) -> Callable[..., Any]:
    """Function that calls a function of a test module in a process on a GPU and returns its result.

    With ``ranks``, as many processes call it, and the results are a list.
    """

    def run(function: Callable[..., Any], *arguments: Any, values: bool = True, ranks: int = 0) -> Any:
        if REAL and ranks > torch.cuda.device_count():
            pytest.skip(f"this needs {ranks} GPUs")
        path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        if not REAL:
            assert pytestconfig.cache is not None
            library = build.build(pytestconfig.cache.mkdir("fake_cuda"))
            environment |= {"FAKE_CUDA_DEVICES": str(max(1, ranks)), "LD_PRELOAD": str(library)}
            environment |= {"TRITON_LIBCUDA_PATH": str(library.parent)}
        file = tmp_path / f"{function.__name__}-{time.monotonic_ns()}"
        call = [function.__module__, function.__name__, json.dumps(arguments), str(int(values and not REAL)), str(file)]
        # torch says so if a backward pass waits for another stream, which ends captures.
        command = [sys.executable, "-W", "error:The AccumulateGrad", "-m", "tests.gpu.session", *call]
        started = []
        for rank in range(max(1, ranks)):
            group = {"RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks else {}
            with open(f"{file}.out{rank}", "w") as out:
                started.append(subprocess.Popen(command, env=environment | group, stdout=out, stderr=out))
        try:
            codes = [process.wait(570) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        printed = [Path(f"{file}.out{rank}").read_text()[-6000:] for rank in range(len(started))]
        assert not any(codes), "\n".join(printed)
        results = [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(len(started))]
        return results if ranks else results[0]

    return run
