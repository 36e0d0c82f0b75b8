"""Runs as a table: mean and deviation of each loss, the last rows of the best run, and its backbone.

python scripts/examples/read_results.py [OUTPUTS]
"""

import sys

import ssl_bench

table = ssl_bench.runs(sys.argv[1] if len(sys.argv) > 1 else "outputs", where={"state": "finished"})
print(table.groupby("loss")["knn/top1"].agg(["mean", "std", "count"]))
best = table.loc[table["knn/top1"].idxmax()]
print(ssl_bench.curves(best)[["step", "loss"]].tail(2))
print(f"parameters: {sum(p.numel() for p in ssl_bench.load(best).parameters()):,}")
