"""``ssl-bench <command>``; a command's module is imported when it is asked for."""

import os
import sys
from collections.abc import Callable, Sequence

USAGE = """usage: ssl-bench <command> ...

  train      pre-train and evaluate: train [group=option] [key=value], a grid with -m; train --help lists the groups
  evaluate   judge a trained run again: evaluate RUN_DIR [evaluate=linear_moco] [evaluate.knn.k=20]
  status     every run and grid under outputs/: status [OUTPUTS] [--watch | --json | --failed]
  mi         the mutual information of Gaussians by a loss: mi -m information=2,4 pairs=64,512 loss=infonce,eqco
  weight     how hard a loss pulls the positive: weight -m k=256,1024 temperature.tau=0.1,0.2 loss=infonce,dcl
  reproduce  train what a paper's table needs: reproduce dcl/table1 [row=...] [col=...] [scale=smoke] [--dry-run]
  table      the paper's numbers beside the runs on disk: table dcl/table1 [--format md|tex|csv|json]
  figure     the same as a picture: figure dcl/fig3 --out fig3.png
  prepare    get a dataset ready: prepare dataset=cifar10 [--source FOLDER]
"""


def main() -> None:
    """The console script; exits with the command's code."""
    run: Callable[[Sequence[str]], int]
    command, arguments = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    # Idle OpenMP threads spin for milliseconds by default, which takes the cores away from other processes; without
    # any spinning small networks wait for their threads to wake up. It has to be said before torch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if command == "train":
        from ssl_bench.commands.train import main as run
    elif command == "evaluate":
        from ssl_bench.commands.evaluate import main as run
    elif command == "status":
        from ssl_bench.status.view import main as run
    elif command == "mi":
        from ssl_bench.commands.mi import main as run
    elif command == "weight":
        from ssl_bench.commands.weight import main as run
    elif command == "reproduce":
        from ssl_bench.papers.plan import main as run
    elif command == "table":
        from ssl_bench.papers.formats import main as run
    elif command == "figure":
        from ssl_bench.papers.figure import main as run
    elif command == "prepare":
        from ssl_bench.data.prepare import main as run
    elif command in ("--help", "-h", "help"):
        print(USAGE, end="")
        sys.exit(0)
    else:
        print(f"ssl-bench: there is no command {command!r}\n\n{USAGE}", file=sys.stderr, end="")
        sys.exit(2)
    try:
        code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read what is printed has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
