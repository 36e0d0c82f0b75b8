"""The commands of ``ssl-bench``, one file each, with ``main(arguments) -> exit code``, and their table;
``arguments.py`` is how they read a command line."""

COMMANDS = {
    "train": "pre-train and evaluate: train [group=option] [key=value], a grid with -m",
    "evaluate": "evaluate a trained run again: evaluate RUN_DIR [evaluate=linear_moco] [evaluate.knn.k=20]",
    "embed": "features of any images, and their neighbours: embed RUN_DIR [dataset=folder dataset.root=DIR]",
    "export": "its backbone for timm, torchvision or the Hugging Face hub: export RUN_DIR [--format card] [--out DIR]",
    "check": "is this machine right, and how fast? check [speed]; is a loss right? check --loss FILE.py:NAME",
    "status": "every run and grid under outputs/: status [grid] [loss=dcl] [--sort knn/top1] [--watch]",
    "compare": "what matters in a grid, and is A better than B? compare grid [--by loss --to infonce]",
    "report": "runs and plots as one HTML file: report [OUTPUTS | NAME ...] [--out FILE] [--watch]",
    "reproduce": "train the runs that a paper's table needs: reproduce dcl/table1 [row=...] [col=...] [--dry-run]",
    "table": "a paper's numbers beside the runs on disk: table dcl/table1 [--format md|tex|csv|json]",
    "figure": "the same as a plot, table with --out: figure dcl/fig3 --out fig3.png",
    "prepare": "write a dataset's arrays: prepare dataset=cifar10 [--source FOLDER]",
}
