"""Record or compare the observations of short runs and of the default run, which ``golden.json`` holds.

Observed are: every number in the rows of ``metrics.jsonl`` except clocks and marks; the metrics, facts and keys of
``results.json``; the printed table; the names of the files; and of the last checkpoint the keys, the names, shapes and
types of the method's tensors and a SHA-256 of their bytes. The run_id and the paths of classes are not observed.

Where the machine equals the recorded one (:func:`machine`: torch, Python, processor, instruction set, threads), every
bit must be equal. Other processors and other versions of torch round differently: the numbers in the rows of an fp64
run must agree to 1e-8, the loss of the default run, which is long and in fp32, to 2e-1, and also that of the others
where the initial weights, random numbers in fp32, are rounded differently (processors without AVX2), to 2e-2, relative
or absolute. Names must be equal; checksums, accuracies and the gradient's signal-to-noise ratio, which divides rounding
errors in the first steps, are not compared there.

All runs are on the CPU with one thread (or ``OMP_NUM_THREADS``).

The tests compare. After a change that is meant to change results, write ``golden.json`` anew by

    python -m tests.test_golden --record

and mark the change **results** in CHANGELOG.md.
"""

import hashlib
import json
import math
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import SMALL, THREADS, only_run  # which says how many threads before torch is loaded

# isort: split
import pytest
import torch
import yaml
from torch.torch_version import TorchVersion

from tests.ranks import Command

RECORD = Path(__file__).with_name("golden.json")
TABLE = ("        ", "raw pixels", "random initialisation", "pre-trained")  # beginnings of the lines of a table
CLOCKS = {"seconds", "images_per_second", "estimated_seconds"}
FP64, FP32, WHOLE = 1e-8, 2e-2, 2e-1  # tolerances on another machine
EXACT = ["train", *SMALL, "optimizer.lr=0.01", "epochs=40", "max_steps=5", "precision=fp64"]
GIVEN: dict[str, str] = yaml.safe_load(RECORD.with_name("golden_runs.yaml").read_text())
RUNS = {name: line.replace("EXACT", " ".join(EXACT)).split() for name, line in GIVEN.items()}

Run = dict[str, Any]


RECENT = TorchVersion(torch.__version__) >= "2.14"  # earlier ones add up some float32 sums in another order


def machine() -> dict[str, str]:
    """Describe the machine: everything but the code that the bits of a result depend on."""
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    normal = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    found = [re.search(rf"^{name}\s*: (.*)$", cpuinfo, re.MULTILINE) for name in ("model name", "cpu family", "model")]
    return {
        "torch": str(torch.__version__),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "processor": " ".join(each[1] for each in found if each) or platform.processor(),
        "capability": " ".join(
            [torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA", "")]
        ).strip(),
        "threads": str(THREADS),
        "weights": hashlib.sha256(normal.numpy().tobytes()).hexdigest()[:16],
    }


# ---- observations


def carried_out(*arguments: str, pictures: bool = False) -> str:
    """Run ``ssl-bench`` on the CPU; return its output, of all ranks."""
    command = Command(*arguments, environment={"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}, pictures=pictures)
    printed = command.wait(600)
    assert command.code == 0, f"{arguments} ended with code {command.code}:\n{printed}"
    return printed


def observe(name: str) -> Run:
    """Carry out a run in the current folder, which must be empty; return its observations."""
    printed = carried_out(*RUNS[name], pictures=name == "default")
    folder = only_run()
    # Without those in ``hits/``, which tests/record/test_hits.py reads.
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "hits"]
    results = json.loads((folder / "results.json").read_text())
    found: Run = {
        "files": sorted(str(path.relative_to(folder)) for path in files),
        "results": sorted(results.keys() - {"evaluations", "warnings"}),  # the first have the numbers of "metrics"
        "metrics": results["metrics"],
        "facts": {key: value for key, value in results.get("facts", {}).items() if key not in CLOCKS},
        "table": [line for line in printed.splitlines() if line.startswith(TABLE)],
        **_trace(folder / "metrics.jsonl"),
        **_checkpoint(folder / "checkpoints" / "last.pt"),
    }
    if name == "simclr-infonce":
        carried_out("evaluate", str(folder), "evaluate=geometry", "evaluate.baselines=[init]")
        again = json.loads((folder / "results.json").read_text())["metrics"]
        found["again"] = {"metrics": {key: value for key, value in again.items() if key not in results["metrics"]}}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # as it will be read


def _trace(path: Path) -> Run:
    """Every number of the rows by name, null where a row lacks it; of a long run every tenth row.

    JSON keeps all bits of a double.
    """
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = sorted({name for row in rows for name in row if not name.startswith("watch/")} - {"evaluations"})
    kept = rows[:: 10 if len(rows) > 20 else 1]
    return {"names": names, "rows": {n: [row.get(n) for row in kept] for n in names if n not in CLOCKS}}


def _checkpoint(path: Path) -> Run:
    state = torch.load(path, map_location="cpu", weights_only=True)
    digest, parts = hashlib.sha256(), dict[str, dict[str, Any]]()  # by module and by name
    for path_of, value in sorted(state["method"].items()):
        module, _, name = path_of.rpartition(".")
        part = parts.setdefault(module, {})
        if not isinstance(value, torch.Tensor):
            part[name] = repr(value)
            continue
        part[name] = [str(value.dtype).removeprefix("torch."), *value.shape]
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"checkpoint": sorted(state.keys() - {"starts"}), "method": parts, "sha256": digest.hexdigest()}


# ---- comparison


def differences(name: str, recorded: Run, found: Run, machine_of_record: dict[str, str]) -> list[str]:
    """Differences of a run from its record."""
    here = machine()
    if here == machine_of_record:
        return list(_walk(recorded, found, None, ""))
    exact = name != "default" and here["weights"] == machine_of_record["weights"] and RECENT
    tolerance = WHOLE if name == "default" else FP64 if exact else FP32
    return list(_walk(_portable(recorded, exact), _portable(found, exact), tolerance, ""))


def _portable(run: Run, exact: bool) -> Run:
    """The part of the observations that another machine reproduces: all numbers, or only the loss; no accuracy."""
    kept = {key: value for key, value in run.items() if key not in ("sha256", "rows", "again")}
    kept["metrics"] = sorted(run["metrics"])
    kept["table"] = [re.sub(r"(?<![\w.])[\d.]+%?", "%", line).replace(" ", "") for line in run["table"]]
    numbers = {n: values for n, values in run.get("rows", {}).items() if n not in kept["metrics"]}
    kept["rows"] = {n: v for n, v in numbers.items() if n == "loss" or (exact and not n.startswith("gradient_snr"))}
    return kept


def _walk(recorded: Any, found: Any, tolerance: float | None, where: str) -> Iterator[str]:
    """Differences of two JSON values."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in sorted({*recorded, *found}):
            if key not in recorded or key not in found:
                yield f"{where}/{key}: only {'recorded' if key in recorded else 'found'}"
            else:
                yield from _walk(recorded[key], found[key], tolerance, f"{where}/{key}")
    elif isinstance(recorded, list) and isinstance(found, list) and len(recorded) == len(found):
        for number, (one, other) in enumerate(zip(recorded, found, strict=True)):
            yield from _walk(one, other, tolerance, f"{where}[{number}]")
    elif repr(recorded) != repr(found):  # equal texts mean equal bits, also for -0.0 and NaN
        floats = isinstance(recorded, float) and isinstance(found, float)
        if not floats or tolerance is None or not math.isclose(recorded, found, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where}: {recorded!r} was recorded, {found!r} found"


LONG = ("default", "moco_v2-dcl-2ranks")
MARKS = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS) if name in LONG else name for name in RUNS])
def test_a_run_equals_its_record(name: str) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    found = differences(name, recorded["runs"][name], observe(name), recorded["machine"])
    assert not found, f"{len(found)} differences: {found[:5]}"


def main() -> int:
    """Write ``golden.json``."""
    if sys.argv[1:] != ["--record"]:
        print("usage: python -m tests.test_golden --record", file=sys.stderr)
        return 2
    runs, here = dict[str, Run](), os.getcwd()
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            runs[name] = observe(name)
            os.chdir(here)
    RECORD.write_text(_text({"machine": machine(), "runs": runs}) + "\n", "utf-8")
    return 0


def _text(value: Any, indent: str = "") -> str:
    """JSON with a line for each group of values, so that git shows its changes."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or len(line) < 200:
        return line
    inner = indent + " "
    entries = [f"{inner}{json.dumps(key)}: {_text(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


if __name__ == "__main__":
    sys.exit(main())
