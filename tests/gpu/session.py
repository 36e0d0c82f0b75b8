"""A process on a GPU, real or fake, that calls a function of a test module and writes what it returns as JSON.

    python -m tests.gpu.session MODULE FUNCTION ARGUMENTS(JSON) VALUES(0 or 1) FILE

With the variables RANK and WORLD_SIZE it is a rank of a group over NCCL.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import torch

from ssl_bench.distributed import join_local, leave


def main() -> None:
    module, function, arguments, computed, file = sys.argv[1:]
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.cuda.set_device(rank)
    if computed == "1":
        from tests.gpu import values

        values.install()
    if ranks > 1:
        join_local(Path(file).with_suffix(".store"), rank, ranks, torch.device("cuda", rank), 60)
    result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
    Path(f"{file}.{rank}").write_text(json.dumps(result))
    leave()
    os._exit(0)  # torch's threads may be at work on what a test has left


if __name__ == "__main__":
    main()
