"""What the readers of a results folder say, with and without one of its runs."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench import files
from ssl_bench.commands import compare, status, table


class Screen(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


def asked(command: Callable[..., Any], *words: str, out: io.StringIO | None = None) -> tuple[int, str, str]:
    """What a command answers: its code and what it prints."""
    out, err = out or io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), err.getvalue()


def numbers() -> tuple[dict[str, Any], str]:
    """The records of ``status --json`` by the names of the runs' directories, and what it says beside them.

    Without the labels, which say what distinguishes a run from the others.
    """
    files.say_once.cache_clear()
    code, out, said = asked(status.main, "outputs", "--json")
    assert code == 0
    records = [{**record, "label": ""} for record in json.loads(out) if record["folder"]]
    return {Path(record["folder"]).name: record for record in records}, said


def means() -> dict[str, tuple[float, int]]:
    """The mean of each loss in the tables of ``table``, in percent, and the number of its runs."""
    code, out, said = asked(table.main, "seed=0,1", "--rows", "loss", "--format", "json")
    assert code == 0, said
    tables, of_loss = json.loads(out), dict[str, tuple[float, int]]()
    for row in [row for one in (tables if isinstance(tables, list) else [tables]) for row in one["rows"]]:
        mean, count = of_loss.get(row["loss"], (0.0, 0))
        both = count + row["n"]
        of_loss[row["loss"]] = (mean * count + row["mean"] * row["n"]) / both, both
    return of_loss


def pairs() -> list[tuple[list[int], float]]:
    """The seeds and the differences of ``compare``."""
    code, out, said = asked(compare.main, "--by", "loss", "seed=0,1", "--metric", "knn/top1", "--format", "json")
    assert code == 0, said
    return [(cell["seeds"], abs(cell["difference"])) for cell in json.loads(out)["cells"]]


class Truth:
    """What the readers say without damage, and with one run less."""

    def __init__(self, victim: Path) -> None:
        self.victim, (self.records, said) = victim, numbers()
        assert said == ""
        loss, seed = (yaml.safe_load((victim / "config.yaml").read_text())[key] for key in ("loss", "seed"))
        self.loss = "dcl" if loss["_target_"].endswith("DCL") else "infonce"
        self.whole = means(), pairs()
        aside = victim.rename("aside")
        self.less = means(), pairs()
        aside.rename(victim)
        assert self.less[1][0][0] == [1 - seed]

    def holds(self, damage: Any) -> str:
        """Check all readers; return what was said of the run, empty if it has its numbers."""
        records, said = numbers()
        for name, record in self.records.items():
            if name != self.victim.name:
                assert records[name] == record, (damage, name)
        own, kept = records.get(self.victim.name), self.records[self.victim.name]
        has_results = own is not None and own["state"] == "done"
        if has_results:
            assert own is not None and own["metrics"] == kept["metrics"], damage
        else:
            lines = [line for line in said.splitlines() if self.victim.name in line]
            assert lines and all("damaged" in line for line in lines), (damage, said)
        expected = self.whole if has_results else self.less
        named = damage[1][:2] == ("config", "choices") and isinstance(damage[2], str)  # an option has any name
        if not (has_results and named):
            assert means() == {loss: pytest.approx(values) for loss, values in expected[0].items()}, damage
        assert pairs() == expected[1], damage
        return "" if has_results else said
