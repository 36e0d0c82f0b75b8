"""``ssl-bench check``: does this machine compute what it should, and how fast? Or, by ``--loss``: is a loss right?

Each answer is a line: section, name, figure and verdict; a reason and advice follow if the verdict is not good. Answers
about the machine are stored in ``<paths.outputs>/checks/<host>-<time>/check.json``.
"""

import datetime
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.config.ranges import near, one_of
from ssl_bench.errors import ConfigError, require
from ssl_bench.files import given_path, usual_outputs, writing
from ssl_bench.hardware import available_cores
from ssl_bench.surroundings import without_gpus

if TYPE_CHECKING:
    from ssl_bench.check.report import SectionAnswer

KEYS = ("device", "paths.outputs")


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Check this machine, or a loss.

    Returns:
        0: nothing is wrong; 1: something is; 2: wrong arguments, or a loss that cannot be used.
    """
    parser = Parser("check", "Does this machine compute what it should, and how fast? Or: is a loss right?")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="check only these: machine, steps, ranks, ...")
    text = "check a loss on 1, 2 and 4 ranks, in chunks and bf16, after a resume, ...: FILE.py:CLASS, or dcl"
    parser.add_argument("--loss", metavar="LOSS", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON; the lines go to standard error")
    parser.epilog = """device=cpu: use no GPU. paths.outputs=DIR: the results folder. With --loss, key=value are
        arguments of the loss: temperature=0.1."""
    options = parser.read(arguments)
    return _loss(options) if options.loss else _machine(options, shlex.join(["ssl-bench", "check", *arguments]))


def _machine(options: Any, command: str) -> int:
    settings: dict[str, str] = dict(override.partition("=")[::2] for override in options.overrides)
    for key in settings.keys() - KEYS:
        raise ConfigError(f"there is no key {key}{near(key, KEYS)}: {', '.join(KEYS)} are what can be set here")
    one_of("device", settings.get("device", "auto"), ("auto", "cpu"))
    if settings.get("device") == "cpu":
        without_gpus()
    require(settings.get("paths.outputs") != "", "paths.outputs", "", "a folder")
    outputs = given_path(settings.get("paths.outputs", str(usual_outputs())))
    import torch  # heavy

    from ssl_bench.check import report
    from ssl_bench.check.answer import Setting
    from ssl_bench.check.run import SECTIONS, run

    for name in options.sections:
        one_of("SECTION", name, tuple(SECTIONS))
    with writing():
        (outputs / "checks").mkdir(parents=True, exist_ok=True)
    gpus, started = torch.cuda.device_count(), datetime.datetime.now(datetime.UTC)
    device = torch.device("cuda", 0) if gpus else torch.device("cpu")
    setting = Setting(device, gpus or min(2, available_cores()), outputs)
    chosen = [name for name in SECTIONS if name in ["machine", *(options.sections or SECTIONS)]]
    answers, wrong = _printed(((name, answer) for name in chosen for answer in run(SECTIONS[name], setting)), options)
    path = report.save(outputs, command, gpus, started, answers)
    print(path, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(path.read_text(), end="")
    return wrong


def _loss(options: Any) -> int:
    from ssl_bench.check import loss, report
    from ssl_bench.config import with_hydra
    from ssl_bench.files import as_json

    keys = dict[str, Any]()
    with with_hydra.in_sentences(options.overrides):
        for override in with_hydra.parsed(options.overrides):
            require(not override.is_sweep_override(), str(override.key_or_group), override.value(), "one value")
            keys[str(override.key_or_group)] = override.value()
    answers, wrong = _printed((("loss", answer) for answer in loss.answers(options.loss, keys)), options)
    if options.json:
        print(as_json(report.findings(answers)))
    return wrong


def _printed(results: "Iterator[SectionAnswer]", options: Any) -> "tuple[list[SectionAnswer], int]":
    """Print answers as they come; return them, and 1 if one is wrong."""
    from ssl_bench.check import report
    from ssl_bench.check.answer import Verdict

    output, answers = sys.stderr if options.json else sys.stdout, list["SectionAnswer"]()
    for result in results:
        answers.append(result)
        print(report.text(result), file=output, flush=True)
    print(report.summary(answers), file=output)
    return answers, int(any(answer.verdict is Verdict.WRONG for _, answer in answers))
