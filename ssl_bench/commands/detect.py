"""``ssl-bench detect``: the evaluator ``detection`` on an exported backbone, on several GPUs and resumed after a stop.

    ssl-bench export RUN_DIR
    torchrun --nproc-per-node 8 -m ssl_bench detect RUN_DIR/export/backbone_timm.json --data COCO

COCO is a folder with ``train2017/``, ``val2017/`` and ``annotations/``. The recipe, and what of it is known from the
paper, is in conf/evaluate/detection.yaml. A run that is smaller in any respect is recorded as ``scale: smoke``.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.distributed import leave, rank, world
from ssl_bench.evaluate.detection import Detection, FineTuning
from ssl_bench.hardware import check_devices, local_device
from ssl_bench.networks.export import load
from ssl_bench.record import checkpoint

FULL = {"epochs": 12, "sizes": [640, 800]}
COCO_TRAIN = 117_266  # photos of train2017 with an object


def finetune(training: FineTuning, options: argparse.Namespace, digest: str) -> dict[str, Any]:
    """Train and evaluate, resuming after the last saved epoch; return the record.

    Args:
        digest: SHA-256 of the backbone's weights.
    """
    settings = {name: value for name, value in sorted(vars(options).items()) if not isinstance(value, Path)}
    identifying = json.dumps([settings, digest])
    identity, folder = hashlib.sha256(identifying.encode()).hexdigest()[:10], options.out / "checkpoints"
    if (state := checkpoint.load(folder, identity)) is not None:
        training.load_state_dict(state)
    while training.epoch < options.epochs:
        training.train_epoch()
        if rank() == 0:
            checkpoint.save(folder, {"run_id": identity, **training.state_dict()})
    full = all(settings[name] == value for name, value in FULL.items()) and len(training.photos["train"]) >= COCO_TRAIN
    metrics = {"scale": "full" if full else "smoke", "metrics": training.average_precision()}
    count = {f"{split}_photos": len(photos) for split, photos in training.photos.items()}
    record = metrics | count | {"steps": training.step, "losses": training.losses[-50:], "ranks": world()}
    places = {"export": str(options.export), "data": str(options.data)}
    return record | {"settings": settings | places, "weights_sha256": digest}


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write ``OUT/detection.json``; 0, 1 for a run that failed, 2 for wrong arguments or data."""
    parser = Parser("detect", "Fine-tune a detector on an exported backbone.")
    parser.add_argument("export", type=Path, help="RUN_DIR/export/backbone_timm.json")
    parser.add_argument("--data", type=Path, required=True, help="folder with annotations/ and the photos")
    parser.add_argument("--images", default=".", help="folder in it with train2017/ and val2017/")
    parser.add_argument("--out", type=Path, default=Path("outputs/detection"))
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="photos of all ranks together")
    parser.add_argument("--lr", type=float, default=0.02, help="rate for 16 photos")
    parser.add_argument("--warmup", type=int, default=1000, help="steps")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs=2,
        default=[640, 800],
        help="short side in training, from the first to the second; the second in the test",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto", help="cpu: use no GPU")
    options = parser.parse_args(arguments)
    backbone, facts = load(options.export)
    settings = {"batch_size": options.batch, "lr": options.lr, "warmup": options.warmup, "sizes": options.sizes}
    recipe = Detection(facts["mean"], facts["std"], str(options.data), options.images, options.epochs, **settings)
    recipe.check_data()
    check_devices(int(os.environ.get("LOCAL_WORLD_SIZE", 1)), options.device)
    device = local_device(int(os.environ.get("LOCAL_RANK", 0)), options.device)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        record = finetune(FineTuning(recipe, backbone, device, options.seed), options, facts["sha256"])
        if rank() == 0:
            options.out.mkdir(parents=True, exist_ok=True)
            files.write_json(options.out / "detection.json", record)
            print(json.dumps({"scale": record["scale"], **record["metrics"]}), options.out / "detection.json")
        return 0
    finally:
        if dist.is_initialized():
            leave()
