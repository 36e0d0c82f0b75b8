"""Twenty-five faults in twenty-five places, and whether the nearest tests find them: how strong the tests are.

``python -m tests.mutations [NAME ...] [--tree DIR] [--json] [--wider]`` is run by hand, from the top of the repository.
It copies the tree to a temporary folder, plants one fault at a time, and runs the test files that are nearest to it. A
fault that no test finds is a missing test: it gets one. Where code moves, its fault moves with it as the same
behaviour, so that the table can be compared with that of another version.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A fault that is planted.

    Attributes:
        file: below ``ssl_bench/``.
        old: text that occurs exactly once in the file.
        tests: the nearest test files, below ``tests/``.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = [
    Fault(
        "queue beside a symmetric loss",
        "api/pair_loss.py",
        'not isinstance(parts["negatives"], Queue) if symmetric is None',
        "True if symmetric is None",
        ("api/test_pair_loss.py",),
    ),
    Fault(
        "NaN is within the bounds",
        "check/bounds.py",
        "if math.isfinite(self.error) else",
        "if not math.isinf(self.error) else",
        ("check/test_exact.py",),
    ),
    Fault(
        "the last evaluation alone decides the exit code",
        "commands/evaluate.py",
        "return max(codes)",
        "return codes[-1]",
        ("commands/test_evaluate.py",),
    ),
    Fault(
        "a training of max_steps can be extended",
        "config/identity.py",
        'return bool(config.get("optimizer")) and config.get("max_steps") is None',
        'return bool(config.get("optimizer"))',
        ("config/test_identity.py", "training/test_identity.py"),
    ),
    Fault(
        "the only image of a class is held out",
        "data/own_images.py",
        "int(len(of_class) > 1))",
        "1)",
        ("data/test_folder.py", "data/test_own.py", "data/test_own_arrays.py"),
    ),
    Fault(
        "no box reaches the last row",
        "data/views.py",
        "u[:, 0] * (height - box_height + 1)",
        "u[:, 0] * (height - box_height)",
        ("data/test_views.py",),
    ),
    Fault(
        "a number at its bound does not fit",
        "shapes.py",
        "bounds.least <= value <= bounds.largest",
        "bounds.least <= value < bounds.largest",
        ("test_shapes.py",),
    ),
    Fault(
        "gradients are summed over the ranks",
        "distributed.py",
        "torch.cat([g.flatten() for g in alike]).div_(world())",
        "torch.cat([g.flatten() for g in alike])",
        ("methods/test_base.py", "training/test_chunked.py", "test_invariances.py"),
    ),
    Fault(
        "an image among many equal ones votes for itself",
        "evaluate/knn.py",
        "is_self[:, -1] |= ~is_self.any(1)",
        "is_self[:, 0] |= ~is_self.any(1)",
        ("evaluate/test_knn.py", "training/test_watch.py"),
    ),
    Fault(
        "pairs of an image with itself",
        "evaluate/geometry.py",
        "triu_(1)]",
        "triu_(0)]",
        ("evaluate/test_geometry.py",),
    ),
    Fault(
        "any lease counts as one's own",
        "record/lease.py",
        'f"\\ntoken={self.token}\\n" in files',
        '"" in files',
        ("record/test_lease.py",),
    ),
    Fault(
        "SimSiam with gradient through the positives",
        "methods/siamese.py",
        "p.detach() if self.stop_gradient else p",
        "p",
        ("methods/test_siamese.py",),
    ),
    Fault(
        "the padding of an export's small stem",
        "networks/export.py",
        "{width}, 3, 1, 1, bias=False)",
        "{width}, 3, 1, 0, bias=False)",
        ("commands/test_export.py",),
    ),
    Fault(
        "running variance of all ranks is biased",
        "networks/norm.py",
        "var.detach() * (count / (count - 1))",
        "var.detach()",
        ("networks/test_norm.py",),
    ),
    Fault(
        "keys of the wrong view",
        "objective/negatives.py",
        "keys = e.p.flip(0) if e.anchor_keys is None",
        "keys = e.p if e.anchor_keys is None",
        ("objective/test_negatives.py",),
    ),
    Fault(
        "a milestone counts one step late",
        "objective/schedule.py",
        "progress >= milestone",
        "progress > milestone",
        ("objective/test_negatives.py",),
    ),
    Fault(
        "a weight with gradient",
        "objective/losses/macl_w.py",
        "(2 - contrast.cosine).detach()",
        "(2 - contrast.cosine)",
        ("objective/test_losses.py",),
    ),
    Fault(
        "an override keeps its old place",
        "papers/cells.py",
        "            kept.pop(key, None)\n",
        "",
        ("papers/test_papers.py", "papers/test_own.py"),
    ),
    Fault(
        "rows of steps that are repeated stay",
        "record/dashboard.py",
        '(step if "loss" in row else evaluated_step)',
        "step",
        ("record/test_metrics.py",),
    ),
    Fault(
        "a thinned curve loses an extreme",
        "report/curves.py",
        "stretch = values[start:end]",
        "stretch = values[start : max(end - 1, start + 1)]",
        ("report/test_html.py",),
    ),
    Fault(
        "the condition value 1 is read as 1%",
        "results/table.py",
        "one > 1 else one",
        "one >= 1 else one",
        ("results/test_select.py",),
    ),
    Fault(
        "a comparison of which one question is decided counts as decided",
        "results/statistics.py",
        "rejected.all(-1)",
        "rejected.any(-1)",
        ("results/test_model.py",),
    ),
    Fault(
        "both passes of a chunk draw their own numbers",
        "training/chunked.py",
        "        set_rng_state(state)\n",
        "",
        ("training/test_chunked.py", "test_invariances.py"),
    ),
    Fault(
        "layers count from the head itself",
        "training/optim.py",
        "head = 1 + max(layers.values())",
        "head = max(layers.values())",
        ("training/test_optim.py",),
    ),
    Fault(
        "the mean cosine of the collapse alarm has each image with itself",
        "training/watch.py",
        "(float(total @ total) - images) / (images * (images - 1))",
        "float(total @ total) / (images * images)",
        ("training/test_watch.py",),
    ),
]
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
PARTS = ("ssl_bench", "tests", "conf", "scripts", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LIMIT = 1200  # seconds of the tests of one fault


@dataclass(frozen=True)
class Found:
    """What the tests say of a fault; ``by``: the first test that fails, empty if the fault survives."""

    fault: str
    place: str
    by: str
    seconds: float


def place(tree: Path, fault: Fault) -> str:
    """Path and line of a fault.

    Raises:
        ValueError: its text is not in the tree, or in several places.
    """
    path = tree / "ssl_bench" / fault.file
    text = path.read_text() if path.exists() else ""
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: its text is {text.count(fault.old)} times in ssl_bench/{fault.file}")
    return f"{fault.file}:{text[: text.index(fault.old)].count(chr(10)) + 1}"


def measured(tree: Path, fault: Fault, wider: bool) -> Found:
    """Plant a fault in a copy of a tree and run its nearest tests; of a survivor with ``wider`` those of its folder."""
    at = place(tree, fault)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        copy.mkdir()
        for name in PARTS:
            target = copy / name
            if (tree / name).is_dir():
                shutil.copytree(tree / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(tree / name, target)
        path = copy / "ssl_bench" / fault.file
        path.write_text(path.read_text().replace(fault.old, fault.new))
        start = time.monotonic()
        nearest = [name for name in fault.tests if (copy / "tests" / name).exists()]
        found = failing(copy, nearest)
        if not found and wider:
            rest = sorted({name.partition("/")[0] for name in fault.tests if "/" in name})
            found = failing(copy, [*rest, *(f"--deselect=tests/{name}" for name in nearest)])
        return Found(fault.name, at, found, time.monotonic() - start)


def failing(copy: Path, words: Sequence[str]) -> str:
    """The first test that fails; empty if none does.

    Raises:
        RuntimeError: the tests could not be run.
    """
    arguments = [word if word.startswith("-") else f"tests/{word}" for word in words]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT)
    match = FAILED.search(run.stdout)
    if run.returncode not in (0, 1) and not match:
        raise RuntimeError(
            f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}"
        )
    return match[1] if match else "" if run.returncode == 0 else "a test without a name"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 if every fault is found, 1 if one survives, 2 if a fault has no place in the tree."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults whose name, file or text contains one of these words")
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="repository (default: the working directory)")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument("--wider", action="store_true", help="try a survivor with all tests of its folder, too")
    options = parser.parse_args(arguments)
    chosen = [f for f in FAULTS if not options.names or any(n in f"{f.name} {f.file}" for n in options.names)]
    try:
        for fault in chosen:
            place(options.tree, fault)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    found = list[Found]()
    if not options.json:
        print("| fault | place | found by | s |\n|---|---|---|--:|", flush=True)
    for fault in chosen:
        found.append(measured(options.tree.resolve(), fault, options.wider))
        one = found[-1]
        if not options.json:
            print(f"| {one.fault} | {one.place} | {one.by or 'SURVIVES'} | {one.seconds:.0f} |", flush=True)
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    elif found:
        print(f"{sum(bool(one.by) for one in found)} of {len(found)} faults are found")
    return int(not all(one.by for one in found))


if __name__ == "__main__":
    sys.exit(main())
