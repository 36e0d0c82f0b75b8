"""The scripts that measure a GPU: their tables and files. What times the fake GPU gives means nothing."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.gpu.conftest import REAL

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_half_hour.sh"
sys.path.append(str(ROOT / "scripts"))

import benchmark_step  # noqa: E402
import floors  # noqa: E402
import tables  # noqa: E402

from ssl_bench.training.graph import GraphedStepper  # noqa: E402

KERNEL = {"kernel": "gemm<a, b>", "launches": 3.0, "us": 1234.0, "share": 0.617}
TFLOPS, BANDWIDTH = 100.0, 5.0  # 10^12 a second
PER_VIEW = 3.33 / TFLOPS, 0.0175 / BANDWIDTH  # ms
FLOORS = {"arithmetic floor": 2 * PER_VIEW[0], "arithmetic and memory floor": 2 * sum(PER_VIEW)}
VARIANTS = {f"ssl_bench, replayed, {setting}" for setting in re.findall(r"--set (\S+)", SCRIPT.read_text())}
OURS = {"ssl_bench, replayed", "ssl_bench, eager", *VARIANTS}
OTHERS = {"plain loop, channels_last", "plain loop, channels_last, kornia's views", "lightly's loss and forwards"}


def measured(out: str, real: bool) -> list[list[str]]:
    """Run the step's part of the half hour with small batches; the rows in its file each time that one is saved."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes a minute here
    benchmark_step.STEPS, saved = 4, []  # as few as a graph allows
    save, other = benchmark_step.save, benchmark_step.other

    def keep(path: Path | None, *content: Any) -> None:
        save(path, *content)
        rows = json.loads(Path(out, "step.json").read_text())["rows"]
        saved.append([f"{row['name']} {row['batch']}" for row in rows])

    def greedy(*arguments: Any) -> Any:
        if arguments[1] is benchmark_step.kornia_views:
            raise MemoryError
        return other(*arguments)

    def not_here() -> Any:  # lightly's loss has shapes that depend on values, and the fake GPU computes none here
        raise ImportError(name="lightly")

    changed: Any = benchmark_step
    changed.save, changed.other, changed.lightly_loss = keep, greedy, not_here
    if not real:  # CUPTI ends a process that has no driver
        changed.kernels = lambda *arguments: [KERNEL]
    changed.best_tflops = lambda *arguments: TFLOPS
    changed.copy_gigabytes = floors.copy_gigabytes = lambda *arguments: 1e3 * BANDWIDTH
    (command,) = re.findall(r"benchmark_step\.py (.*)", SCRIPT.read_text())
    with patch.object(GraphedStepper, "_compared", lambda *_: []):
        benchmark_step.main([*shlex.split(command.replace("$OUT", out)), "--batch", "2", "3", "--rounds", "1"])
    return saved


@pytest.mark.slow
def test_a_step_on_a_gpu_is_timed_beside_its_floor_and_other_loops(gpu: Callable[..., Any], tmp_path: Path) -> None:
    saved = gpu(measured, str(tmp_path), REAL, values=False)
    count = len(FLOORS | dict.fromkeys(OURS | OTHERS))
    assert list(map(len, saved)) == [count, 2 * count, 2 * count] and saved[1][:count] == saved[0]
    assert {"ssl_bench, replayed, compile=true", "ssl_bench, replayed, precision=fp16"} <= VARIANTS
    content = json.loads((tmp_path / "step.json").read_text())
    assert "CUDA" in content["environment"] and content["command"].startswith("python ")
    rows = {(row["name"], row["batch"]): row for row in content["rows"]}
    assert rows.keys() == {(name, batch) for name in {*FLOORS, *OURS, *OTHERS} for batch in (2, 3)}
    for (name, batch), row in rows.items():
        if "kornia" in name:  # for which the test makes the memory too small
            assert row["missing"] == "out of memory"
        elif "missing" in row:
            assert name not in OURS and row["missing"] == "not installed (lightly)"
        else:
            assert row["fastest_ms"] <= row["median_ms"] <= row["slowest_ms"]
            assert row["images_s"] == pytest.approx(1e3 * batch / row["median_ms"])
            if name in FLOORS:  # 3.33 GFLOP and 17.5 MB a view
                assert row["median_ms"] == pytest.approx(batch * FLOORS[name])
    table = tables.of_steps(content["rows"]).splitlines()
    assert table[0] == "| ms of a step, bf16, by batch size | 2 | 3 |"
    assert re.fullmatch(r"\| arithmetic floor \| \S+ \(1\.00x\) \| \S+ \(1\.00x\) \|", table[2])
    assert "| plain loop, channels_last, kornia's views | out of memory | out of memory |" in table
    kernels = json.loads((tmp_path / "kernels.json").read_text())["rows"]
    assert kernels[0].keys() == KERNEL.keys() and (not REAL or sum(row["share"] for row in kernels) == pytest.approx(1))


def half_hour(out: Path, base: dict[str, str], small: dict[str, str], *names: str) -> subprocess.CompletedProcess[str]:
    """The script with a small limit and command for each part."""
    text = SCRIPT.read_text()
    text = re.sub(r"( part (\w+)) \d+ .*", lambda match: f"{match[1]} {small.get(match[2], '9 true')}", text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = base | {"PATH": path, "OUT": str(out)}
    command = ["bash", "-c", text, str(SCRIPT), *names]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def read(out: Path) -> tuple[dict[str, str], str]:
    """The exit code of each part in the JSON file, and the Markdown page."""
    found = json.loads((out / "half_hour.json").read_text())
    return {part["part"]: part["code"] for part in found["parts"]}, (out / "half_hour.md").read_text()


STEP = {"name": "ssl_bench, eager", "precision": "bf16", "batch": 32, "median_ms": 12.3}
LOSS = {"name": "ssl_bench InfoNCE, tiled", "images": 4096, "median_ms": 4.56}


@pytest.mark.slow
def test_parts_that_fail_or_take_too_long_do_not_stop_the_half_hour(
    gpus: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    environment = gpus(1)

    def writes(file: str, *rows: dict[str, Any]) -> str:
        words = ["import sys; open(sys.argv[1], 'w').write(sys.argv[2])", str(tmp_path / file)]
        return f"9 {shlex.join(['python', '-c', *words, json.dumps({'rows': rows})])}"

    small = {
        "check": "9 false",
        "tests": "9 echo '[gw0] [ 50%] PASSED tests/gpu/test_steps.py::test_a'",
        "step": writes("step.json", STEP, STEP | {"batch": 64, "median_ms": 0, "missing": ""}),
        "losses": "1 sleep 30",
        "simclr": writes("losses.json", LOSS),
        "dcl": '9 bash -c "kill -9 $$"',  # the script itself
    }
    rest = {"kernel": "b", "launches": 0.5, "us": 766.0, "share": 0.383}
    (tmp_path / "kernels.json").write_text(json.dumps({"rows": [KERNEL, rest]}))
    done = half_hour(tmp_path, environment, small)
    assert done.returncode == -9  # in the middle of the sixth part
    codes, page = read(tmp_path)
    assert codes == {"check": "1", "tests": "0", "step": "0", "losses": "124", "simclr": "0"}
    for line in ("| check | failed | 1 | ", "| losses | ended by its limit | 124 | ", "| passed | 1 |"):
        assert line in page
    assert "| ssl_bench, eager | 12.3 (1.00x) |" in page and "| ssl_bench InfoNCE, tiled | 4.56 (1.00x) |" in page
    assert "| gemm<a, b> | 3 | 1,234 | 61.7% |" in page and "| all 2 | 3.5 | 2,000 | 100.0% |" in page
    assert ", CUDA " in page and ", torch " in page and (REAL or "nvidia-smi does not answer" in page)

    done = half_hour(tmp_path, environment, {}, "losses", "dcl")  # another call adds to the folder
    assert done.returncode == 0 and done.stderr == ""
    codes, page = read(tmp_path)
    assert codes == {"check": "1", "tests": "0", "step": "0", "losses": "0", "simclr": "0", "dcl": "0"}
    assert half_hour(tmp_path, environment, {"step": "9 false"}, "step").returncode == 1
    # The last part has all that is left, and may be stopped by it.
    assert half_hour(tmp_path, environment, {"compare_losses": "0 sh -c 'exit 124'"}, "compare_losses").returncode == 0
    limit = int((tmp_path / "parts.tsv").read_text().splitlines()[-1].split("\t")[1])
    assert 29 * 60 - 20 <= limit <= 29 * 60
    assert half_hour(tmp_path, environment, {}, "stepp").returncode == 2
    assert half_hour(tmp_path, environment | {"MINUTES": "half"}, {}, "step").returncode == 2
    half_hour(tmp_path, environment | {"MINUTES": "10"}, {"step": "29 true"}, "step")
    assert "\nstep\t10\t" in (tmp_path / "parts.tsv").read_text()
