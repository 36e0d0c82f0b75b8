"""``ssl-bench prune [WORD ...]``: remove from finished runs what only further steps need.

That is the state of the optimiser, a half or more of ``last.pt``, and ``previous.pt``. A pruned run is evaluated,
loaded, exported, shown and compared as before. A run that can go on to more
epochs, since its learning rate is constant, keeps its state.
"""

from argparse import Namespace
from collections.abc import Sequence

from ssl_bench.commands.arguments import Parser, in_sentences, refuse
from ssl_bench.commands.words import entries_of
from ssl_bench.config.identity import extensible
from ssl_bench.disk import temporary
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.launch.lock import locked
from ssl_bench.record import checkpoint, results
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.select import ENDED


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Prune; 0, 1 if a run could not be, 2 for wrong arguments."""
    parser = Parser("prune", "Remove from finished runs what only further training needs.")
    parser.add_words()
    parser.add_outputs()
    parser.add_argument("--dry-run", action="store_true", help="only say how much it would free")
    parser.epilog = "Pruned runs are evaluated, loaded and shown as before."
    options = parser.read_words(arguments)
    entries, options.outputs = entries_of([*options.words, ENDED], options.outputs)
    return _prune([entry.run for entry in entries if entry.run and entry.run.done], options)


def _prune(runs: Sequence[RunFolder], options: Namespace) -> int:
    temporary.remove(options.outputs, inside=True)
    freed, pruned, growing, code = 0, 0, 0, 0
    for run in runs:
        further = extensible(run.config)
        growing += further
        try:
            with locked(run.folder, wait=False) as lock:
                if lock.other is not None or not results.is_finished(run.folder):  # it was started again meanwhile
                    continue
                removed = 0 if further else checkpoint.prune(run.folder, options.dry_run)
        except (ConfigError, RunError) as error:
            code = refuse(f"{run.folder} is left as it is: {error}", 1)
            continue
        freed, pruned = freed + removed, pruned + bool(removed)
    size = f"{freed / 1e6:,.2f} MB of optimisers and earlier states"
    print(f"{'would free' if options.dry_run else 'freed'} {size} in {pruned} of {len(runs)} finished runs")
    if growing:
        print(f"{growing} of them can go on to more epochs, and keep their state: their learning rate is constant")
    return code
