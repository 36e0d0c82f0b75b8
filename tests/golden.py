"""Record or compare the observations of short runs and of the default run, which ``golden.json`` holds.

Observed are: every number in the rows of ``metrics.jsonl`` except clocks and marks; the metrics, facts and keys of
``results.json``; the printed table; the names of the files; and of the last checkpoint the keys, the names, shapes and
types of the method's tensors and a SHA-256 of their bytes. The run_id and the paths of classes are not observed.

The comparison depends on the machine (:func:`strictness`):

``bits``
    The machine equals the recorded one (:func:`machine`: torch, Python, processor, instruction set, threads): every bit
    must be equal.
``rounding``
    Other processors and other versions of torch round differently. The numbers in the rows of an fp64 run must agree to
    1e-8, the loss of an fp32 run to 2e-2 and that of the default run, which is long, to 2e-1, relative or absolute.
    Names and everything that is not rounded must be equal. Checksums, accuracies and the gradient's signal-to-noise
    ratio, which divides rounding errors in the first steps, are not compared.
``weights``
    The initial weights, random numbers in fp32, are rounded differently too (processors without AVX2): fp64 runs are
    compared like fp32 ones.

All runs are on the CPU with one thread (or ``OMP_NUM_THREADS``) and two visible cores: a rank takes its share of the
cores for its threads.

``test_golden.py`` compares. After a change that is meant to change results, write ``golden.json`` anew by

    python -m tests.golden --record

and mark the change **results** in CHANGELOG.md.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from tests.conftest import SMALL, THREADS, no_pictures, only_run  # which says how many threads before torch is loaded

# isort: split
import torch
from torch.torch_version import TorchVersion

RECORD = Path(__file__).with_suffix(".json")
TABLE = ("        ", "raw pixels", "random initialisation", "pre-trained")  # beginnings of the lines of a table
CLOCKS = {"seconds", "images_per_second", "estimated_seconds"}
FP64, FP32, WHOLE = 1e-8, 2e-2, 2e-1  # tolerances on another machine

SHORT = ["train", *SMALL, "optimizer.lr=0.01", "epochs=40", "max_steps=5"]
EXACT, SINGLE = [*SHORT, "precision=fp64"], [*SHORT, "precision=fp32"]
EVALUATED = ["evaluate=[knn,linear]", "evaluate.baselines=[init,raw]"]
MEASURED = ["framework=frozen", "loss=eqco", "temperature=fixed", "backbone.width=4", "tracking=off"]
WATCHED = ["diagnostics.npc_histogram=true", "diagnostics.gradient_snr=0.9"]

# Together every loss, framework, kind of negatives, temperature and optimiser.
RUNS: dict[str, list[str]] = {
    "default": ["train", "tracking=off"],
    "simclr-infonce": [*EXACT, *EVALUATED, *WATCHED],
    "simclr-dcl-cross_view": [*EXACT, "loss=dcl", "negatives=cross_view", "temperature=learned", "optimizer=lars"],
    "simclr-eqco-random_k": [
        *(*EXACT, "loss=eqco", "loss.alpha=64", "negatives=random_k", "negatives.k=8", "temperature=cosine"),
    ],
    "simclr-macl": [*EXACT, "loss=macl", "temperature=macl_a", "reduction=sum", "augment=crop"],
    "simclr-macl_w-memory_bank": [*EXACT, "loss=macl_w", "negatives=memory_bank", "temperature=macl_b"],
    "simclr-dclw-multicrop": [
        *(*EXACT, "loss=dclw", "temperature=linear", "temperature.slope=0.001"),
        *("augment=multicrop_cifar", "augment.small.size=12", "augment.small.count=2"),
    ],
    "simclr-flatnce-chunk": [*EXACT, "loss=flatnce", "batch_size.chunk=16", "optimizer=adam", "optimizer.lr=0.01"],
    "simclr-align_uniform-2ranks": [*EXACT, "loss=align_uniform", "devices=2"],
    "simclr-decoupled_nt_xent-fp32": [*SINGLE, "loss=decoupled_nt_xent", "evaluate=knn", "evaluate.baselines=[init]"],
    "simclr-swd-fp32": [*SINGLE, "loss=swd"],
    "moco_v1-dual_temperature-fp32": [*SINGLE, "framework=moco_v1", "loss=dual_temperature", "negatives.k=100"],
    "moco_v2-dcl-2ranks": [*EXACT, "framework=moco_v2", "loss=dcl", "negatives.k=100", "devices=2"],
    "byol": [
        *(*EXACT, "framework=byol", "framework.predictor=32", "head.hidden=32"),
        *("optimizer=adamw", "optimizer.lr=0.01", "augment=byol"),
    ],
    "moco_v3": [*EXACT, "framework=moco_v3", "framework.predictor=32", "head.hidden=32"],
    "relic": [*EXACT, "framework=relic", "head.layers=2", "head.hidden=32"],
    "simo": [*EXACT, "framework=simo"],
    "npid": [*EXACT, "framework=npid"],
    "npid-nce": [*EXACT, "framework=npid", "loss=nce", "negatives.k=32"],
    "npid_cld": [*EXACT, "framework=npid_cld", "framework.clusters=8"],
    "moco_cld": [*EXACT, "framework=moco_cld", "framework.clusters=8", "negatives.k=96"],
    "inv_spread": [*EXACT, "framework=inv_spread"],
    "densecl": [*EXACT, "framework=densecl", "negatives.k=96"],
    "exemplar": [*EXACT, "framework=exemplar"],
    "vae": [*EXACT, "framework=vae", "framework.width=4"],
    "supervised": [*EXACT, "framework=supervised", "evaluate=knn"],
    "mutual_information": [
        *("train", "dataset=gaussians", *MEASURED, "temperature.tau=1", "batch_size.size=16", "loss.alpha=15"),
        *(f"evaluate.mutual_information.{setting}" for setting in ("hidden=16", "steps=20", "evaluations=5")),
    ],
    "gradient_weight": [
        *("train", *MEASURED, "temperature.tau=0.3", "evaluate=gradient_weight"),
        *(f"evaluate.gradient_weight.{setting}" for setting in ("k=16", "positive=0.5", "negative=0.1")),
    ],
}
# Runs that `ssl-bench evaluate` evaluates again, and its arguments.
AGAIN: dict[str, list[str]] = {"simclr-infonce": ["evaluate=geometry", "evaluate.baselines=[init]"]}

Run = dict[str, Any]
Level = Literal["bits", "rounding", "weights"]
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


def command(*arguments: str) -> tuple[int, str]:
    """Run ``python -m ssl_bench`` in this process, on the CPU; return its exit code and output, of all ranks."""
    torch.set_num_threads(THREADS)
    hidden = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
    with contextlib.ExitStack() as around:
        around.enter_context(patch.dict(os.environ, hidden))  # restores variables that the command sets, too
        around.enter_context(patch("torch.cuda.is_available", lambda: False))
        around.enter_context(patch.object(sys, "argv", ["ssl-bench", *arguments]))
        around.enter_context(_two_cores())
        printed = around.enter_context(_captured())
        code: Any = 0
        try:
            runpy.run_module("ssl_bench", run_name="__main__")
        except SystemExit as end:
            code = end.code
        printed.flush()
        printed.seek(0)
        return int(code or 0), printed.read()


@contextlib.contextmanager
def _two_cores() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def _captured() -> Iterator[Any]:
    """Redirect the output of this process and its children to the file that is yielded."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        sys.stdout.flush(), sys.stderr.flush()
        kept = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield file
        finally:
            for number, former in zip((1, 2), kept, strict=True):
                os.dup2(former, number)
                os.close(former)


# ---- observations


def _files(folder: Path) -> list[Path]:
    """The files of a run without those in ``hits/``, which tests/record/test_hits.py reads."""
    return [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "hits"]


def observe(name: str, carry_out: Callable[..., tuple[int, str]] = command) -> Run:
    """Carry out a run in the current folder, which must be empty; return its observations."""
    with contextlib.nullcontext() if name == "default" else no_pictures():
        code, printed = carry_out(*RUNS[name])
    assert code == 0, f"{name} ended with code {code}:\n{printed}"
    folder = only_run()
    results = json.loads((folder / "results.json").read_text())
    found: Run = {
        "files": sorted(str(path.relative_to(folder)) for path in _files(folder)),
        "results": sorted(results.keys() - {"evaluations", "warnings"}),  # the first have the numbers of "metrics"
        "metrics": results["metrics"],
        "facts": {key: value for key, value in results.get("facts", {}).items() if key not in CLOCKS},
        "table": [line for line in printed.splitlines() if line.startswith(TABLE)],
        **_trace(folder / "metrics.jsonl"),
        **_checkpoint(folder / "checkpoints" / "last.pt"),
    }
    if name in AGAIN:
        code, printed = command("evaluate", str(folder), *AGAIN[name])
        assert code == 0, f"{name} cannot be evaluated again, code {code}:\n{printed}"
        again = json.loads((folder / "results.json").read_text())["metrics"]
        found["again"] = {"metrics": {key: value for key, value in again.items() if key not in results["metrics"]}}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # as it will be read


def _trace(path: Path) -> Run:
    """Every number of the rows by name, null where a row lacks it; of a long run every tenth row.

    JSON keeps all bits of a double.
    """
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = sorted({name for row in rows for name in row if not name.startswith("watch/")} - {"evaluations"})
    kept = rows[:: 10 if len(rows) > 20 else 1]
    return {"names": names, "rows": {n: [row.get(n) for row in kept] for n in names if n not in CLOCKS}}


def _checkpoint(path: Path) -> Run:
    if not path.exists():
        return {}
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


def strictness(recorded: dict[str, str]) -> Level:
    """How strictly this machine can be compared with the recorded one."""
    here = machine()
    return "bits" if here == recorded else "rounding" if here["weights"] == recorded["weights"] else "weights"


def differences(name: str, recorded: Run, found: Run, level: Level) -> list[str]:
    """Differences of a run from its record."""
    if level == "bits":
        return list(_walk(recorded, found, None, ""))
    exact = level == "rounding" and "precision=fp64" in RUNS[name] and RECENT
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


def read() -> dict[str, Any]:
    """The record: ``machine`` and ``runs``."""
    return json.loads(RECORD.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


# ---- by hand


def main() -> int:
    """Write ``golden.json``."""
    if sys.argv[1:] != ["--record"]:
        print("usage: python -m tests.golden --record", file=sys.stderr)
        return 2
    runs = {name: _observed(name) for name in RUNS}
    RECORD.write_text(_text({"machine": machine(), "runs": runs}) + "\n", "utf-8")
    return 0


def _observed(name: str) -> Run:
    """Observe a run in a temporary folder."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return observe(name)
        finally:
            os.chdir(here)


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
