"""``ssl-bench evaluate WORD ... [evaluate=...]``: evaluate the last checkpoints of runs, and train nothing.

With ``--weights FILE`` the network comes from elsewhere: :mod:`ssl_bench.commands.weights`.

An evaluation that the run has already is not computed again. New metrics are added to its ``results.json`` and its
``metrics.jsonl``, and to W&B or TensorBoard if it is tracked there.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ssl_bench.commands import train, weights
from ssl_bench.commands.arguments import Parser, in_sentences, refuse, take_outputs
from ssl_bench.config import reference, with_hydra
from ssl_bench.errors import ConfigError, RunError

CHANGEABLE = ("evaluate=", "evaluate.", "device=", "paths.data=", "dataset.root=", "dataset.path=")
WEIGHTS = "in place of runs: a file, timm:NAME or random; which=momentum takes the second network of a file"


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Evaluate; 0, 1 if a run cannot be evaluated, 2 for wrong arguments."""
    about = "Evaluate trained runs again: only missing evaluations are computed, nothing is trained."
    parser = Parser("evaluate", about)
    parser.add_words("; only finished runs count")
    usual, of_papers = (reference.listed({"evaluate": with_hydra.options("evaluate")}, one) for one in (False, True))
    parser.epilog = f"""Then key=value: evaluate=OPTION or evaluate=[OPTION,...] in place of the run's own evaluators,
        evaluate.key=value, device=cpu, paths.data=DIR, dataset.root=DIR. {usual}; of the papers, {of_papers}"""
    parser.add_argument("--weights", metavar="FILE", help=WEIGHTS)
    options = parser.read(arguments)
    overrides = options.overrides
    if options.weights:
        if options.words:
            raise ConfigError(f"{options.words[0]}: leave it out: --weights evaluates one network, and no runs")
        with weights.network(options.weights, overrides) as words:
            return train.train(words)
    outputs = take_outputs(overrides)
    conditions = [word for word in overrides if not word.startswith(CHANGEABLE)]
    overrides = [word for word in overrides if word not in conditions]
    from ssl_bench.results.table import finished_folders
    from ssl_bench.training.finished import read_again

    folders = finished_folders([*options.words, *conditions], outputs)
    for folder in folders[1:]:  # all refusals before the first evaluation
        read_again(folder, overrides)
    codes = list[int]()
    for folder in folders:
        try:
            codes.append(evaluate(folder, overrides))
        except RunError as error:
            codes.append(refuse(error, RunError.exit_code))
        if codes[-1] > 128:  # a signal
            break
    return max(codes)


def evaluate(folder: Path, overrides: Sequence[str]) -> int:
    """Compute the missing ones of the evaluations that a run's configuration and ``overrides`` request.

    Raises:
        ConfigError: there is no run, it cannot be written, or an override does not concern the evaluation or fit it.
        RunError: its training has not ended, or its last checkpoint cannot be used.
    """
    from ssl_bench.launch import lease
    from ssl_bench.launch.processes import Outcome, State
    from ssl_bench.launch.run import launch
    from ssl_bench.record import evaluations
    from ssl_bench.record.runs import is_complete, read_results
    from ssl_bench.results.status import print_run
    from ssl_bench.training.build import InitialWeights, has_no_checkpoint
    from ssl_bench.training.finished import read_again
    from ssl_bench.training.validate import validate

    config, run = read_again(folder, overrides), folder.resolve()  # the name of "." or a link: the run_id
    if not is_complete(run, config):
        if (results := read_results(run)) is None or results["run_id"] != run.name:
            raise RunError(f"{folder} is not trained to its end: start its training again")
        if not os.access(run, os.W_OK):
            raise ConfigError(f"{run} cannot be written, and its new numbers go there: evaluate a copy of it")
        try:
            validate(config, 1)
        except InitialWeights:  # are needed for the baseline only
            missing = evaluations.missing(results["evaluations"], config)
            if any(entry["network"] == "_init" for entry in missing) or has_no_checkpoint(config, run):
                raise
            config = config | {"init": None}
            validate(config, 1)
        with lease.held(run, wait=True) as claim:
            outcome = Outcome(State.DONE_BEFORE)
            if not is_complete(run, config):  # another process has not evaluated it meanwhile
                outcome = launch(config, run, None, claim=claim)
        if not outcome.finished:
            outcome.report()
            return outcome.code
    print_run(folder, config, timed=False)
    return 0
