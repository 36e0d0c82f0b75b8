"""Plant faults in the package, and print whether the nearest tests find them.

``python -m tests.mutations [NAME ...] [--tree DIR]`` is run by hand, from the top of the repository. It
copies the tree to a temporary folder, plants one fault of mutations.yaml at a time, and runs the test files that are
nearest to it. A fault that no test finds is a missing test: it gets one.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

Fault = dict[str, Any]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
PARTS = ("ssl_bench", "tests", "conf", "scripts", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LIMIT = 1200  # seconds of the tests of one fault


def place(tree: Path, fault: Fault) -> str:
    """Path and line of a fault.

    Raises:
        ValueError: its text is not in the tree, or in several places.
    """
    path = tree / "ssl_bench" / fault["file"]
    text = path.read_text() if path.exists() else ""
    if (count := text.count(fault["old"])) != 1:
        raise ValueError(f"{fault['name']}: its text is {count} times in ssl_bench/{fault['file']}")
    return f"{fault['file']}:{text[: text.index(fault['old'])].count(chr(10)) + 1}"


def found(tree: Path, fault: Fault) -> str:
    """Plant a fault in a copy of a tree; return the first of its nearest tests that fails, or an empty text.

    Slow tests do not count: they do not run before a change lands.

    Raises:
        RuntimeError: the tests could not be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        copy.mkdir()
        for name in PARTS:
            if (tree / name).is_dir():
                shutil.copytree(tree / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(tree / name, copy / name)
        path = copy / "ssl_bench" / fault["file"]
        path.write_text(path.read_text().replace(fault["old"], fault["new"]))
        names = [f"tests/{name}" for name in fault["tests"] if (copy / "tests" / name).exists()]
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *names]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT)
    match = FAILED.search(run.stdout)
    if run.returncode not in (0, 1) and not match:
        raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
    return match[1] if match else "a test without a name" if run.returncode == 1 else ""


def main() -> int:
    """Print the table; 0 if every fault is found, 1 if one survives, 2 if a fault has no place in the tree."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults whose name or file contains one of these words")
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="repository (default: the working directory)")
    options = parser.parse_args()
    faults: list[Fault] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    chosen = [f for f in faults if not options.names or any(n in f"{f['name']} {f['file']}" for n in options.names)]
    try:
        places = [place(options.tree, fault) for fault in chosen]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print("| fault | place | found by | s |\n|---|---|---|--:|", flush=True)
    survivors = 0
    for fault, at in zip(chosen, places, strict=True):
        start = time.monotonic()
        by = found(options.tree.resolve(), fault)
        survivors += not by
        print(f"| {fault['name']} | {at} | {by or 'SURVIVES'} | {time.monotonic() - start:.0f} |", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} faults are found")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
