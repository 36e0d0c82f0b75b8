"""``ssl-bench evaluate RUN_DIR [evaluate=...]``: run_evaluators the checkpoint of a run again, with any evaluators."""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.record import plots

USAGE = (
    "usage: ssl-bench evaluate RUN_DIR [evaluate=OPTION | evaluate=[OPTION,...]] [evaluate.key=value] [paths.data=...]"
    "\n       ssl-bench evaluate RUN_DIR export=timm|torchvision"
)


def main(arguments: Sequence[str]) -> int:
    """Writes ``RUN_DIR/evaluations/<id>.json`` and prints it; 0, 1 for a bad checkpoint, 2 for bad arguments.

    What is no number goes to ``RUN_DIR/evaluations/<id>/<name>.json`` and ``.png``.
    """
    if not arguments or "=" in arguments[0] or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    try:
        folder, overrides = Path(arguments[0]), list(arguments[1:])
        if any(override.startswith("export=") for override in overrides):
            return _export(folder, overrides)
        path, metrics = evaluate(folder, overrides)
    except ConfigError as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 1
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


def _export(folder: Path, overrides: Sequence[str]) -> int:
    if len(overrides) > 1:
        raise ConfigError(f"{overrides[0]} and {overrides[1]}: export=... stands alone")
    from ssl_bench.networks.export import export

    print(export(folder, overrides[0].removeprefix("export=")))
    return 0


def evaluate(folder: Path, overrides: Sequence[str]) -> tuple[Path, dict[str, float]]:
    """Judges ``last.pt`` of a run; gives the file that was written and the metrics.

    Raises:
        ConfigError: no run there, an override that is not about evaluation, or one that does not fit.
        RunError: no checkpoint that can be read.
    """
    import yaml

    from ssl_bench.config import compose as configuration

    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder} is no run directory: `ssl-bench status` lists them")
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    for override in overrides:
        if not override.startswith(("evaluate=", "evaluate.", "paths.data=")):
            raise ConfigError(f"{override}: only evaluate and paths.data can be changed for a run that is trained")
    data = config["paths"]["data"].replace("\\", "\\\\").replace("'", "\\'")
    same_run = [f"dataset={config['choices']['dataset']}", f"paths.data='{data}'"]
    composed = configuration.load([*same_run, *overrides])
    config["evaluate"] = composed["evaluate"]
    if any(o.startswith("paths.data=") for o in overrides):
        config["paths"] = composed["paths"]
    configuration.check(config)

    import copy

    import torch

    from ssl_bench import parts as assemble
    from ssl_bench.evaluate.run import run_evaluators
    from ssl_bench.hardware import Precision, local_device, move
    from ssl_bench.record import checkpoint
    from ssl_bench.seeding import seed_everything

    assemble.validate(config | {"devices": 1}, 1)
    state = checkpoint.load(folder / "checkpoints", folder.resolve().name)
    if state is None:
        raise RunError(f"{folder} has no checkpoint yet: start its training")
    device = local_device(0)
    precision = Precision.of(config["precision"], device.type == "cuda")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config["tf32"]  # as the run had it
    torch.backends.cudnn.benchmark = True
    seed_everything(config["seed"])
    method = assemble.method(config).to(precision.weights)
    networks: dict[str, torch.nn.Module | None] = {"": method.encoder}
    if "init" in config["evaluate"]["baselines"]:
        networks["_init"] = move(copy.deepcopy(method.encoder), device)
    if "raw" in config["evaluate"]["baselines"]:
        networks["_raw"] = None
    method.load_state_dict(state["method"])
    move(method, device)
    targets = assemble.targets(config, assemble.dataset(config), networks, device, precision)
    metrics, artifacts = run_evaluators(assemble.evaluators(config), targets)
    record = {"run_id": state["run_id"], "step": state["step"], "evaluate": config["evaluate"], "metrics": metrics}
    name = hashlib.sha256(json.dumps([config["evaluate"], state["step"]], sort_keys=True).encode()).hexdigest()[:10]
    path = folder / "evaluations" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    plots.keep(path.with_suffix(""), artifacts)
    files.write_json(path, record)
    return path, metrics
