"""``ssl-bench evaluate RUN_DIR [evaluate=...]``: evaluate the last checkpoint of a run.

Results go to ``RUN_DIR/evaluations/<id>.json``, artifacts and their plots to ``RUN_DIR/evaluations/<id>/``.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.errors import ConfigError


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Evaluate; 0, 1 for a checkpoint that cannot be used, 2 for wrong arguments."""
    parser = Parser("evaluate", "Evaluate a trained run again.")
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="outputs/<name>/<run_id>")
    parser.epilog = "Then key=value: evaluate=OPTION, evaluate=[OPTION,...], evaluate.key=value, paths.data=DIR."
    options = parser.read(arguments)
    path, metrics = evaluate(options.run, options.overrides)
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "value")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    Console(highlight=False).print(table)
    print(path)
    for picture in sorted(path.with_suffix("").glob("*.png")):
        print(picture)
    return 0


def evaluate(folder: Path, overrides: Sequence[str]) -> tuple[Path, dict[str, float]]:
    """Evaluate ``last.pt`` of a run; return the file that was written and the metrics.

    Raises:
        ConfigError: there is no run, or an override that does not concern the evaluation or does not fit.
        RunError: no checkpoint can be read.
    """
    from ssl_bench.evaluate.run import run_evaluators
    from ssl_bench.hardware import local_device, move
    from ssl_bench.precision import set_matmul_options
    from ssl_bench.record import plots
    from ssl_bench.training.parts import Parts, load_run, read_config

    config = _configuration(read_config(folder), overrides)
    Parts(config | {"devices": 1, "graph": False}).validate(1)
    device = local_device(0)
    set_matmul_options(config["tf32"])  # as in the run
    run = load_run(folder, config, device)
    move(run.parts.method, device)
    initial = None if run.initial is None else move(run.initial, device)
    networks = run.parts.networks(run.parts.method.encoder, initial)
    targets = run.parts.targets(networks, device, run.precision)
    metrics, artifacts = run_evaluators(run.parts.evaluators, targets)
    record = {"run_id": run.run_id, "step": run.step, "evaluate": config["evaluate"], "metrics": metrics}
    name = hashlib.sha256(json.dumps([config["evaluate"], run.step], sort_keys=True).encode()).hexdigest()[:10]
    path = folder / "evaluations" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    plots.write_artifacts(path.with_suffix(""), artifacts)
    files.write_json(path, record)
    return path, metrics


def _configuration(config: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration of a run with the overrides of its evaluation."""
    from ssl_bench.config import compose, schema

    for override in overrides:
        if not override.startswith(("evaluate=", "evaluate.", "paths.data=")):
            raise ConfigError(f"{override}: only evaluate and paths.data can be changed after the training")
    data = config["paths"]["data"].replace("\\", "\\\\").replace("'", "\\'")
    same_run = [f"dataset={config['choices']['dataset']}", f"paths.data='{data}'"]
    composed = compose.load([*same_run, *overrides])
    changed = {"evaluate": composed["evaluate"]}
    if any(o.startswith("paths.data=") for o in overrides):
        changed["paths"] = composed["paths"]
    schema.check(config | changed)
    return config | changed
