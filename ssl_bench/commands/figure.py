"""``ssl-bench figure X`` is ``ssl-bench table X --out X.png``."""

from collections.abc import Sequence

from ssl_bench.commands import table


def main(arguments: Sequence[str]) -> int:
    """Draw tables; 0, or 2 for wrong arguments."""
    return table.main(arguments, "figure")
