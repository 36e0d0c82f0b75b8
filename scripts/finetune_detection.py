"""Fine-tune a detector on an exported backbone; `ssl_bench/detect.py` says how, `--help` what can be set."""

import sys

from ssl_bench.commands.detect import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
