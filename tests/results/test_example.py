"""The first grid of README, trained as it stands there, decides what README says that it decides."""

import json
import re
import shlex
from pathlib import Path

import pytest

from ssl_bench.commands import compare, train

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_first_grid_of_readme_decides(capfd: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    command = re.search(r"^ssl-bench train (-m name=first .*?)(\s+#.*)?$", text, re.MULTILINE)
    (table,) = re.findall(r"```text\n(knn/top1, percent: .*?)```", text, re.DOTALL)
    shown = {row.split()[0]: "matters" in row for row in table.partition("\n\n")[0].splitlines()[2:]}
    assert command is not None and any(shown.values())
    assert train.main(shlex.split(command[1])) == 0
    capfd.readouterr()
    assert compare.main(["first", "--format", "json"]) == 0
    settings = json.loads(capfd.readouterr().out)["settings"]
    assert {of["setting"]: of["verdict"] == "matters" for of in settings} == shown
