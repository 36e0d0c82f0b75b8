"""The scripts that measure a GPU: their tables and files. What times the fake GPU gives means nothing."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import benchmark_step  # noqa: E402

OTHERS = {"plain loop, channels_last", "plain loop, channels_last, kornia's views", "lightly's loss and forwards"}


def measured(file: str) -> str:
    """The table of two batch sizes, with rounds as short as a graph allows."""
    benchmark_step.STEPS = 5
    command = ["--device", "cuda", "--precision", "bf16", "--batch", "2", "4", "--rounds", "1"]
    benchmark_step.main([*command, "--set", "compile_views=false", "--json", file])
    return benchmark_step.tables(json.loads(Path(file).read_text())["rows"])


@pytest.mark.slow
def test_a_step_on_a_gpu_is_timed_beside_its_floor_and_other_loops(gpu: Callable[..., Any], tmp_path: Path) -> None:
    table = gpu(measured, str(tmp_path / "step.json")).splitlines()
    assert table[0] == "| ms of a step, bf16 (ratio to the first line) | 2 | 4 |"
    assert re.fullmatch(r"\| floor: forward, backward \| \S+ \(1\.00x\) \| \S+ \(1\.00x\) \|", table[2])
    content = json.loads((tmp_path / "step.json").read_text())
    assert "CUDA" in content["environment"]
    rows = {(row["name"], row["batch"]): row for row in content["rows"]}
    names = {benchmark_step.FLOOR, "ssl_bench, replayed", "ssl_bench, eager", *OTHERS}
    assert rows.keys() == {(name, batch) for name in names for batch in (2, 4)}
    for (name, batch), row in rows.items():
        if "missing" in row:  # an optional package
            assert name in OTHERS and row["missing"].startswith("not installed (")
        else:
            assert row["fastest_ms"] <= row["median_ms"] <= row["slowest_ms"]
            assert row["images_s"] == pytest.approx(1e3 * batch / row["median_ms"])


TINY = "dataset=scattered_digits backbone.width=4 epochs=1 evaluate=[knn] evaluate.baselines=[] tracking=off"
SMALLEST = {  # limit and command of each part
    "check": '100 python -m ssl_bench check --quick --only environment "paths.outputs=$OUT"',
    "tests": "100 python -m pytest -n 0 -vv tests/test_errors.py",
    "step": '100 python scripts/benchmark_step.py --precision fp32 --batch 2 --rounds 1 --json "$OUT/step.json"',
    "losses": '100 python scripts/benchmark_losses.py --images 256 --variants --rounds 1 --json "$OUT/losses.json"',
    "simclr": f'20 python -m ssl_bench train {TINY} epochs=100000 log_every=1 name=simclr "paths.outputs=$OUT"',
    "dcl": f'100 python -m ssl_bench train {TINY} max_steps=2 loss=dcl name=dcl "paths.outputs=$OUT"',
    "other_losses": "100 false",
}


@pytest.mark.slow
@pytest.mark.parametrize("data", [True, False])
def test_what_was_done_in_half_an_hour_is_left_when_a_part_is_killed(data: bool, tmp_path: Path) -> None:
    text = (ROOT / "scripts" / "gpu_half_hour.sh").read_text()
    found = re.findall(r"^ +part (\w+) (\d+) ", text, re.MULTILINE)
    assert [name for name, _ in found] == [*SMALLEST] and sum(int(limit) for _, limit in found) <= 29 * 60
    for name, small in SMALLEST.items():
        command = small if data or name in ("simclr", "dcl") else "9 true"
        text = re.sub(rf"( part {name}) .*", lambda match, c=command: f"{match[1]} {c}", text)  # type: ignore[misc]
    (tmp_path / "cifar10").mkdir()
    if data:
        (tmp_path / "cifar10" / "train_images.npy").touch()
    out = tmp_path / "out"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "PYTHONPATH": str(ROOT), "OUT": str(out), "SSL_BENCH_DATA": str(tmp_path)}
    settings |= {"CUDA_VISIBLE_DEVICES": ""}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", text, "gpu_half_hour.sh", *words]
        return subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True)

    done = run()
    assert done.returncode == int(data) and done.stderr == "", done.stderr
    content, page = json.loads((out / "half_hour.json").read_text()), (out / "half_hour.md").read_text()
    codes = {part["part"]: part["code"] for part in content["parts"]}
    assert [*codes] == [*SMALLEST]
    if not data:
        assert f"dcl skipped: there is no {tmp_path}/cifar10/train_images.npy" in done.stdout
        assert codes["simclr"] == codes["dcl"] == "skipped" and content["runs"] == {"simclr": {}, "dcl": {}}
        text = text.replace("part check 9 true", "part check 9 false")
        assert run("check").returncode == 1  # the other parts stay as they were
        again = {part["part"]: part["code"] for part in json.loads((out / "half_hour.json").read_text())["parts"]}
        assert again == codes | {"check": "1"}
        return
    logs = {name: (out / f"{name}.log").read_text()[-2000:] for name in SMALLEST}
    assert codes == dict.fromkeys(SMALLEST, "0") | {"simclr": "124", "other_losses": "1"}, logs
    assert content["check"]["findings"] and content["tests"].keys() == {"PASSED"}
    assert {row["name"] for row in content["step"]["rows"]} >= {"ssl_bench", "lightly"}
    assert content["runs"]["simclr"]["unfinished"]["loss"] > 0
    assert 0 < content["runs"]["dcl"]["metrics"]["knn/top1"] <= 1
    for line in ("| simclr | ended by its limit | ", "| simclr | unfinished: loss ", "| dcl | done | ", "exit code 1"):
        assert line in page
    assert "| ms of a step, fp32 (ratio to the first line) | 2 |" in page
