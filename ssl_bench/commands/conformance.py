"""``ssl-bench conformance my_package:MyLoss``: is a loss of one's own right, and on several GPUs too?"""

from collections.abc import Sequence

import yaml

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.errors import RunError


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print a table; 0 if all bounds hold, 1 if one is broken or the loss fails, 2 for wrong arguments."""
    description = "Compare a loss with a formula: value and gradient on 1, 2 and 4 ranks, bf16, tau 0.01 to 10, resume."
    parser = Parser("conformance", description, epilog="Options of a formula follow as key=value: alpha=65536.")
    parser.add_argument("loss", help="MODULE:NAME or FILE.py:NAME of a class or function")
    text = "such as nt_xent; ? lists them (default: the one whose value it has)"
    parser.add_argument("--as", dest="formula", metavar="FORMULA", help=text)
    options = parser.read(arguments)
    from ssl_bench.check import conformance, formulas, recognised  # import torch

    pairs = (override.split("=", 1) for override in options.overrides)
    given = {key: yaml.safe_load(value) for key, value in pairs}
    formula = options.formula or recognised.formula_of(options.loss, given)
    subject = conformance.Subject(options.loss, formula, given)
    formulas.make(subject.formula, subject.options)
    conformance.import_loss(subject)
    cells, wrong = conformance.compare_with_formula(subject, conformance.measure_on_ranks([subject])[0])
    print(f"| {subject.formula} | {' | '.join(conformance.COLUMNS)} |\n|{'---|' * (1 + len(conformance.COLUMNS))}")
    print(f"| {subject.target} | {' | '.join(cells[column] for column in conformance.COLUMNS)} |")
    if wrong:
        raise RunError("; ".join(f"{column}: {why}" for column, why in wrong.items()))
    return 0
