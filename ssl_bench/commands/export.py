"""``ssl-bench export WORD ... [--format FORMAT] [--out DIR]``: write the backbones of trained runs.

* ``timm``: ``RUN_DIR/export/backbone_timm.pt``, weights with timm's names, and a JSON with the lines of Python that
  load them.
* ``ssl_bench``: ``RUN_DIR/export/backbone_ssl_bench.safetensors``, a network that timm does not have, and a JSON from
  which this package builds it.
* ``card``: ``RUN_DIR/export/card/``, a folder to share: ``model.safetensors`` and ``config.json``, which timm and the
  Hugging Face hub read, or this package, and a model card, ``README.md``.

The default is ``timm`` for networks of timm, and ``ssl_bench`` for others. In the run's own folder an export takes the
place of an earlier one; in the folder of ``--out`` it replaces no file.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.errors import require
from ssl_bench.results.table import finished_folders

FORMATS = ("timm", "ssl_bench", "card")


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write the export and print the path of its description; 0, 1 for a checkpoint that cannot be used, 2 refused."""
    parser = Parser("export", "Write the backbone of a trained run for timm, or as a folder to share.")
    parser.add_words("; only finished runs count")
    parser.add_argument("--format", choices=FORMATS, help="card: a folder for the Hugging Face hub")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder that is written (default: <run>/export)")
    options = parser.read_words(arguments)
    folders = finished_folders(options.words, options.outputs)
    require(options.out is None or len(folders) == 1, "--out", options.out, f"nothing, for {len(folders)} runs")
    for folder in folders:
        print(export(folder, options.format, options.out))
    return 0


def export(folder: Path, form: str | None = None, out: Path | None = None) -> Path:
    """Export the backbone of the run in ``folder``; return the path of the export's description.

    Args:
        folder: directory of the run.
        form: one of ``FORMATS``; None: ``timm`` for its networks, else ``ssl_bench``.
        out: folder to write to; None: ``folder/export``, for a card ``folder/export/card``.

    Raises:
        ConfigError: there is no run, its backbone cannot be exported, or ``out`` has a file of that name.
        RunError: its last checkpoint cannot be used.
        OSError: ``out`` cannot be written.
    """
    import torch

    from ssl_bench.networks import export as libraries
    from ssl_bench.training.finished import load_run, read_config

    config = read_config(folder)
    form = form or ("timm" if libraries.is_of_timm(config) else "ssl_bench")
    libraries.check_exportable(form, config)
    # The run's number format may need a GPU; the export is always float32.
    run = load_run(folder, config | {"precision": "fp32"}, torch.device("cpu"))
    if form == "card":
        contents = _card(config, run)
    else:
        weights = run.method.encoder.get_submodule("backbone").state_dict()
        contents = libraries.export(form, config, weights, run.run_id, run.step)
    for name in contents:
        require(out is None or not os.path.lexists(out / name), "--out", out, f"a folder without {name}")
    place = out or folder / "export" / ("card" if form == "card" else "")
    place.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():  # the last one describes the others
        files.write_bytes(place / name, content)
    return place / list(contents)[-1]


def _card(config: dict[str, Any], run: Any) -> dict[str, bytes]:
    """Weights, configuration and card, by the names of their files."""
    from ssl_bench.networks import export as libraries
    from ssl_bench.papers.card import card
    from ssl_bench.record import runs

    backbone = run.method.encoder.get_submodule("backbone")
    if libraries.is_of_timm(config):
        args = config["backbone"].get("args")
        contents = libraries.timm_files(backbone, config["dataset"], run.run.dataset.eval_view, args)
        load = _load(config["backbone"], backbone.state_dict())
    else:
        contents = libraries.package_files(backbone, libraries.our_config(config))
        where = "In this folder, with ssl_bench, since timm has no such network:"
        load = [(where, libraries.lines_to_load("config.json"))]
    facts = {"run_id": run.run_id, "optimiser step": run.step, "seed": config["seed"]}
    facts |= {"SHA-256 of the weights": hashlib.sha256(contents["model.safetensors"]).hexdigest()}
    text = card(config, runs.read_results(run.folder), facts, load)
    return contents | {"README.md": text.encode(errors="backslashreplace")}  # a name may be no UTF-8


def _load(node: Mapping[str, Any], weights: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """How timm loads ``model.safetensors``: sentences and lines of Python, for a run's ``backbone``."""
    from ssl_bench.networks.export import lines_to_build

    file = "'model.safetensors'"
    if node["stem"] == "cifar":
        build = ["import torch", *lines_to_build(node, weights)]
        stem = "timm has no argument for the stem of this network, which the lines replace. In this folder:"
        return [(stem, [*build, f"timm.models.load_checkpoint(model, {file})", "model.eval()"])]
    sentence = "In this folder (from the hub with `hf-hub:USER/NAME` in place of `local-dir:.`):"
    return [(sentence, ["import timm", "model = timm.create_model('local-dir:.', pretrained=True).eval()"])]
