"""``ssl-bench <command>``: the table of commands. A command is imported when it is called."""

import importlib
import os
import sys

COMMANDS = {
    "train": "pre-train and evaluate: train [group=option] [key=value], a grid with -m",
    "evaluate": "evaluate a trained run again: evaluate RUN_DIR [evaluate=linear_moco] [evaluate.knn.k=20]",
    "status": "every run and grid under outputs/: status [OUTPUTS] [--where loss=dcl] [--sort knn/top1] [--watch]",
    "reproduce": "train the runs that a paper's table needs: reproduce dcl/table1 [row=...] [col=...] [--dry-run]",
    "table": "a paper's numbers beside the runs on disk: table dcl/table1 [--format md|tex|csv|json]",
    "figure": "the same as a plot: figure dcl/fig3 --out fig3.png",
    "prepare": "write a dataset's arrays: prepare dataset=cifar10 [--source FOLDER]",
    "mi": "mutual information of Gaussians, estimated by a loss: mi -m information=2,4 loss=infonce,eqco",
    "weight": "the weight of the positive in a loss's gradient: weight -m k=256,1024 loss=infonce,dcl",
    "detect": "fine-tune a detector on an exported backbone: detect EXPORT.json --data COCO",
}
USAGE = "usage: ssl-bench <command> ...\n\n" + "".join(f"  {name:<10} {text}\n" for name, text in COMMANDS.items())


def main() -> None:
    """Run the command that ``sys.argv`` names and exit with its code."""
    command, arguments = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    # Idle OpenMP threads spin for milliseconds by default and take the cores from other processes; without any spinning
    # small networks wait for their threads to wake up. The variable is read when torch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if command in ("--help", "-h", "help"):
        print(USAGE, end="")
        sys.exit(0)
    if command not in COMMANDS:
        print(f"ssl-bench: there is no command {command!r}\n\n{USAGE}", file=sys.stderr, end="")
        sys.exit(2)
    try:
        code = importlib.import_module(f"ssl_bench.commands.{command}").main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
