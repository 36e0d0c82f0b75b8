"""Run the fast tests and the default run with chosen versions of Python and torch, instructions, threads and cores.

    python scripts/matrix.py                                          # the standard cells have every value twice
    python scripts/matrix.py 3.11:2.6 3.13:newest:avx2:2              # two cells
    python scripts/matrix.py 3.12:2.8 --python 3.12=/opt/python3.12   # an interpreter that is not on PATH

A cell is PYTHON:TORCH, and if wanted :ISA, :THREADS and :CORES, in this order.

    PYTHON   3.11 and so on
    TORCH    newest, or a release such as 2.6
    ISA      default: all instructions of the processor; avx2: those of processors without AVX-512
    THREADS  threads of every process, 1 if absent
    CORES    cores that the cell may use, all if absent

Every pair of Python and torch has a virtual environment in the cache (6 GB with a CUDA build of torch), in which this
repository is installed in place and its dependencies are brought up to date at each call. What pytest and the run
print is in the cache too. The exit code is 1 if anything failed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ssl_bench" / "matrix"
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
STANDARD = ["3.11:2.6", "3.11:2.6:avx2:2", "3.11:2.11:avx2", "3.11:2.11:1:1", "3.13:newest:2", "3.13:newest:avx2:1:1"]
HEAD = ["Python", "torch", "ISA", "threads", "cores", "passed", "failed", "skipped", "seconds", "kNN", "seconds"]


class Cell(NamedTuple):
    """A cell of the table; ``torch`` and ``cores`` may be words."""

    python: str
    torch: str
    isa: str = "default"
    threads: str = "1"
    cores: str = "all"

    @classmethod
    def parse(cls, text: str) -> "Cell":
        found = re.fullmatch(
            r"(3\.\d+):(newest|\d+\.\d+[\d.]*)(?::(default|avx2))?(?::([1-9]\d*))?(?::(all|[1-9]\d*))?", text
        )
        if not found:
            example = "such as 3.11:2.6 or 3.13:newest:avx2:2:all"
            raise argparse.ArgumentTypeError(f"{text} is not PYTHON:TORCH[:ISA][:THREADS][:CORES], {example}")
        given = {name: part for name, part in zip(cls._fields, found.groups(), strict=True) if part}
        return cls(**given)

    def run(self, log: Path, command: list[str | Path], folder: Path = ROOT) -> tuple[int, str]:
        """Run a command in the cell, its output to a file; return the exit code and the rounded seconds."""
        environment = {name: value for name, value in os.environ.items() if name not in AVX2}
        environment |= {"OMP_NUM_THREADS": self.threads} | (AVX2 if self.isa == "avx2" else {})
        cores = sorted(os.sched_getaffinity(0))[: None if self.cores == "all" else int(self.cores)]
        limited = ["taskset", "-c", ",".join(map(str, cores)), *command]
        start = time.monotonic()
        with log.open("w") as output:
            code = subprocess.run(limited, stdout=output, stderr=output, cwd=folder, env=environment).returncode
        return code, f"{time.monotonic() - start:.0f}"


def environment_of(cell: Cell, interpreter: str, cache: Path) -> Path:
    """Make or update the environment of a cell; return its interpreter."""
    python = cache / f"python{cell.python}-torch{cell.torch}" / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", python.parents[1]], check=True)
    torch = "torch" if cell.torch == "newest" else f"torch=={cell.torch}.*"
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--upgrade"]
    subprocess.run([*install, torch, "torchvision", "--editable", f"{ROOT}[dev]"], check=True)
    return python


def carry_out(cell: Cell, python: Path, log: Path) -> tuple[list[str], list[str]]:
    """Run a cell; return its row and a line for everything that failed."""
    version = subprocess.check_output([python, "-c", "import torch; print(torch.__version__)"], text=True).strip()
    code, seconds = cell.run(log, [python, "-m", "pytest"])
    lines = log.read_text(errors="replace").splitlines()
    counts = {name: number for number, name in re.findall(r"(\d+) (passed|failed|skipped)", lines[-1])}
    failures = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    if code and not failures:
        failures = [f"pytest ended with code {code}: {lines[-1]}"]
    row = [
        cell.python,
        version,
        *cell[2:],
        *(counts.get(each, "0") for each in ("passed", "failed", "skipped")),
        seconds,
    ]
    log = log.with_suffix(".train.log")
    with tempfile.TemporaryDirectory() as folder:
        code, seconds = cell.run(log, [python, "-m", "ssl_bench", "train"], Path(folder))
        results = [json.loads(path.read_text()) for path in Path(folder).glob("outputs/*/*/results.json")]
    if code:
        return [*row, "-", seconds], [*failures, f"ssl-bench train ended with code {code}: {log}"]
    return [*row, f"{results[0]['metrics']['knn/top1']:.1%}", seconds], failures


def main() -> int:
    """Run the cells; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", type=Cell.parse, metavar="CELL", help=f"standard: {' '.join(STANDARD)}")
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH", help="an interpreter")
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR", help="for environments: %(default)s")
    arguments = parser.parse_args()
    cells = arguments.cells or [Cell.parse(text) for text in STANDARD]
    paths = {cell.python: f"python{cell.python}" for cell in cells}
    paths |= dict(each.partition("=")[::2] for each in arguments.python)
    for version, path in paths.items():
        if shutil.which(path) is None:
            parser.error(f"{path} is not there: set --python {version}=PATH")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    print("|", " | ".join(HEAD), "|\n|", " | ".join("---" for _ in HEAD), "|", flush=True)
    failed = []
    for cell in cells:
        python = environment_of(cell, paths[cell.python], arguments.cache)
        log = arguments.cache / f"{'-'.join(cell)}.log"
        row, failures = carry_out(cell, python, log)
        print("|", " | ".join(row), "|", flush=True)
        failed += [f"{':'.join(cell)}: {each}" for each in failures]
    print(*failed, sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
