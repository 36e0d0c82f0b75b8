"""Every row of refusals.yaml is refused: in one sentence that names the key and the remedy, with nothing written."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.hardware import available_cores
from tests import given
from tests.door.door import refuses


def rows() -> Iterator[Any]:
    # BaseLoader: each value is the text that stands there
    for section in yaml.load(Path(__file__).with_suffix("").with_name("refusals.yaml").read_text(), yaml.BaseLoader):
        for command, names in section["rows"].items():
            command = f"{section.get('start', '')} {command}".strip()
            yield pytest.param(command, names, section, id=command, marks=[pytest.mark.slow] * ("slow" in section))


@pytest.mark.parametrize(("command", "names", "section"), [*rows()])
def test_it_is_refused(
    command: str,
    names: str,
    section: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = section.get("given", {})
    if isinstance(made, str):
        getattr(given, made)()
    else:
        for name, text in made.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
    if "then" in section:
        subprocess.run(section["then"], shell=True, check=True)
    for variable, value in section.get("env", {}).items():
        monkeypatch.setenv(variable, value)
    refuses(command, names.format(cores=available_cores()), capfd, int(section.get("code", 2)))
