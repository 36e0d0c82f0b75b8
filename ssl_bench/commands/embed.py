"""``ssl-bench embed RUN [dataset=...]``: features of any images as files, with pictures of what they tell apart.

With ``--weights FILE`` the network comes from elsewhere. :mod:`ssl_bench.launch.embed` says what is written. What is
there is not computed again, and a command that was stopped goes on at its last whole batch.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ssl_bench.commands import weights
from ssl_bench.commands.arguments import Parser, in_sentences, taken_outputs
from ssl_bench.commands.words import one_trained
from ssl_bench.errors import ConfigError

NO_EVALUATION = ["evaluate=[]", "evaluate.baselines=[]"]


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write the features and print where; 0, 1 if that fails, 2 for wrong arguments, 128 + n after signal n."""
    parser = Parser("embed", "Features of any images to features.npy, their nearest neighbours and a map as pictures.")
    what = "outputs/<name>/<run_id>, or the run_id of a run below paths.outputs"
    parser.add_argument("run", nargs="?", metavar="RUN", help=what)
    text = "a network from a file, timm:NAME or random, for `backbone=...`; which=momentum: the second network"
    parser.add_argument("--weights", metavar="FILE", help=text)
    parser.add_argument("--split", choices=("train", "test"), help="of the images; both by default")
    text = "the folder to write to, embed/<images> in the folder of the run by default"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
    parser.epilog = """Then key=value: dataset=OPTION and its keys for images, such as dataset=folder
        dataset.root=DIR, by default those of the run; devices=N processes, device=cpu, precision=NAME,
        paths.data=DIR."""
    parser.add_outputs()
    options = parser.read(arguments)
    if (options.run is None) == (options.weights is None):
        raise ConfigError("name one run, or give --weights FILE")
    if evaluated := [word for word in options.overrides if word.startswith("evaluate")]:
        raise ConfigError(f"{evaluated[0]}: leave it out: nothing is evaluated")
    from ssl_bench.config.identity import run_dir
    from ssl_bench.launch.embed import embed
    from ssl_bench.launch.outcome import State
    from ssl_bench.launch.run import report
    from ssl_bench.training.embedding import SPLITS, name_of_images, of_run

    if options.weights is None:
        run = one_trained(options.run, taken_outputs(options.overrides))
        config, folder = of_run(run, options.overrides), run
    else:
        config = weights.configuration(options.weights, [*options.overrides, *NO_EVALUATION])
        run, folder = None, run_dir(config)
    out = options.out or folder / "embed" / name_of_images(config)
    outcome = embed(config, run, [options.split] if options.split else SPLITS, out)
    if outcome.detail:
        print(outcome.detail, file=sys.stderr)
    report(outcome, True)
    if outcome.finished:
        print(f"{'already done' if outcome.state is State.DONE_BEFORE else 'features'}: {out / 'features.npy'}")
    return outcome.code
