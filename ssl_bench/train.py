"""``python -m ssl_bench.train`` is ``ssl-bench train``."""

import sys

from ssl_bench import cli
from ssl_bench.commands.train import main as main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    cli.main()
