"""The commands of ``ssl-bench``, one file each, with ``main(arguments) -> exit code``, and their table;
``arguments.py`` is how they read a command line."""

COMMANDS = {
    "train": "pre-train and evaluate a network: train loss=dcl; a grid with -m",
    "evaluate": "evaluate trained runs again: evaluate RUN evaluate=linear_moco",
    "embed": "write the features of any images, and show neighbours: embed RUN",
    "export": "write the backbone for timm or the Hugging Face hub: export RUN",
    "check": "is this machine right, and how fast? is a loss right (--loss)?",
    "status": "list runs and grids, with their states and what remains to train",
    "compare": "what matters in a grid? is A better than B? compare grid",
    "report": "show runs, curves and comparisons as one HTML file",
    "reproduce": "train the runs of a paper's table: reproduce dcl/table1",
    "table": "show a paper's numbers beside yours, or a table of any runs",
    "figure": "draw the same as a plot: figure dcl/fig3 --out fig3.png",
    "prepare": "write the arrays of a data set: prepare dataset=cifar10",
}
