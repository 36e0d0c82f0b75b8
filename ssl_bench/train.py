"""``python -m ssl_bench.train`` is ``ssl-bench train``."""

import sys

from ssl_bench.commands.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
