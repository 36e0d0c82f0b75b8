"""``ssl-bench verify RUN``: is a finished run what it says it is? A part of its training is carried out again.

Its first and last steps are trained again and its network is evaluated again, in a temporary folder: nothing is written
into that of the run. The four questions are those of :mod:`ssl_bench.check.verify`.
"""

import json
import sys
from collections.abc import Sequence

import yaml

from ssl_bench.commands.arguments import Parser, in_sentences, taken_outputs
from ssl_bench.errors import ConfigError

KEYS = ("device", "devices", "threads", "paths.data", "dataset.root", "dataset.path")  # where and how to carry it out


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Verify a run.

    Returns:
        0: verified. 1: a question has a wrong answer or none. 2: there is no finished run, its images or
        plugins are not here, or the arguments are wrong.
    """
    parser = Parser("verify", "Is a finished run what it says it is? Steps of it are trained again and compared.")
    parser.add_argument("run", metavar="RUN", help="its directory, or its run_id or the beginning of it")
    parser.add_outputs()
    parser.epilog = (
        "Then key=value: paths.data=DIR (or dataset.root, dataset.path), where its images are; device=cpu, devices=N, "
        "threads=N, to carry it out here. What this cannot show is in ssl_bench/check/README.md."
    )
    parser.add_argument("--json", action="store_true", help="print an object, and the lines to standard error")
    options = parser.read(arguments)
    outputs = taken_outputs(options.overrides)
    from ssl_bench.check.verify import answers
    from ssl_bench.commands.words import one_trained

    folder = one_trained(options.run, outputs)
    changes = {}
    for key, _, value in (override.partition("=") for override in options.overrides):
        if key not in KEYS:
            raise ConfigError(f"{key}={value}: leave it out: {', '.join(KEYS)} are what can be set here")
        changes[key] = yaml.safe_load(value)
    answered, lines = dict[str, dict[str, str]](), sys.stderr if options.json else sys.stdout
    for answer in answers(folder, changes):
        print(f"{answer.verdict.value:<7} {answer.name:<8} {answer.figure}", file=lines, flush=True)
        answered[answer.name] = {"verdict": answer.verdict.value, "figure": answer.figure}
    open_questions = [name for name, answer in answered.items() if answer["verdict"] != "good"]
    print(f"not verified: {', '.join(open_questions)}" if open_questions else "verified", file=lines, flush=True)
    if options.json:
        print(json.dumps({"verified": not open_questions, "answers": answered}))
    return int(bool(open_questions))
