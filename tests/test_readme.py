"""Every command line of every README, shortened, and what they say about files and options.

The first run of a training or a grid is composed and checked; a plan is printed, and commands about runs and tables are
carried out.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from ssl_bench import cli
from ssl_bench.config import compose, schema
from tests.conftest import SMALL

ROOT = Path(__file__).parents[1]
READMES = ["README.md", "conf/README.md", "scripts/README.md", "ssl_bench/papers/README.md"]
# tests/api/test_examples.py runs the page of a grid, and tests/api/test_surface.py the tutorial.
READMES += ["ssl_bench/papers/measured/README.md", "CONTRIBUTING.md", "AGENTS.md"]
READMES += [f"ssl_bench/{room}/README.md" for room in ("launch", "data", "check", "networks")]
# What installs and tests the package itself, and W&B's.
SETUP: tuple[str, ...] = ("pip", "uv pip", "pre-commit", "ruff", "mypy", "pytest", "cd", "export", "git", "eval")
SETUP += ("wandb", "bash scripts/", "scripts/")
NOT_COMPOSED = ("experiment=", "row=", "col=", "paths.")


def commands() -> Iterator[tuple[str, str]]:
    """File and text of every command line in a ```bash block, without comments."""
    for name in READMES:
        for block in re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.split(r"\s&&\s|;\s", re.sub(r"(^|\s)#.*", "", line)):
                    if command.strip():
                        yield name, command.strip()


def first_values(words: Sequence[str]) -> list[str]:
    """The overrides of the first run of a grid; other words are left out."""
    overrides = []
    for key, equals, value in (word.partition("=") for word in words if not word.startswith("-")):
        if equals:
            overrides.append(f"{key}={value if value.startswith('[') else value.split(',')[0]}")
    return overrides


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a finished run, for the commands about one."""
    folder = tmp_path_factory.mktemp("readme")
    small = [*SMALL, "max_steps=1", "loss=dcl", "evaluate=[knn]", f"paths.outputs={folder}/outputs"]
    assert import_module("ssl_bench.commands.train").main(small) == 0
    (results,) = folder.glob("outputs/default/*/results.json")
    return results.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_readme_decides_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The grid of "A minute" is trained; its first verdict and direction are those that README prints."""
    monkeypatch.chdir(tmp_path)
    section = (ROOT / "README.md").read_text().partition("## A minute")[2].partition("\n## ")[0]
    ((grid, name),) = re.findall(r"ssl-bench train (-m name=(\w+) .*)", section)
    assert _code("train", shlex.split(grid)) == 0 and f"ssl-bench compare {name}" in section
    capsys.readouterr()
    assert _code("compare", [name, "--format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)["settings"][0]
    printed = re.search(r"largest difference .*\n(\S+) +\S+ +(\S+) < (\S+) +\[.*\] +(\w+)\n", section)
    assert printed and printed[4] == "matters"
    assert printed.groups() == (first["setting"], str(first["from"]), str(first["to"]), first["verdict"])


# A command that stands in several files is carried out once.
COMMANDS = {command: readme for readme, command in reversed(list(commands()))}
PARAMETERS = [pytest.param(*each, id=f"{each[1]}: {each[0]}"[:90]) for each in COMMANDS.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "readme"), PARAMETERS)
def test_a_command_of_a_readme_works(
    readme: str, command: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained.parents[2])
    program, *words = shlex.split(command.replace("...", ""))
    scripts = [word for word in (program, *words) if word.startswith("scripts/")]
    for script in scripts:
        assert (ROOT / script).is_file()
    if program == "ssl-bench":
        assert words[0] in cli.COMMANDS
        assert _code(words[0], _shortened(words[0], words[1:], trained)) == 0, capsys.readouterr()
    elif program == "python" and scripts:
        subprocess.run([sys.executable, str(ROOT / scripts[0]), "--help"], check=True, capture_output=True, cwd=ROOT)
    elif program in ("torchrun", "sbatch"):  # what each job runs is the last word behind --wrap
        _composed(shlex.split(words[-1])[3:] if "--wrap" in words else words)
    else:
        assert command.startswith(SETUP), f"{readme}: nothing checks {command}"


def _shortened(name: str, words: list[str], trained: Path) -> list[str]:
    """The arguments of a command, cut down to what takes a second."""
    if "--help" in words or "--cfg" in words:
        return words
    if name in ("evaluate", "export", "status") and "--weights" not in words:
        words = [re.sub(r"RUN_DIR|outputs/default/<run_id>|^default$", str(trained), word) for word in words]
        if name == "status":  # other commands evaluate the run with another k
            words = [word.replace("knn/top1", "seed") for word in words if word != "grid"]
        short = ["evaluate.npc.batches=1", "evaluate.npc.batch_sizes=[32]"] if "npc" in " ".join(words) else []
        return [*(word for word in words if word != "--watch"), *short]
    if name in ("train", "prepare") and re.search(r"dataset=(hf|folder|arrays)|dataset\.\w+=", " ".join(words)):
        return ["--help"]  # images of the reader, which are not here
    if name in ("train", "check"):
        _composed(words if name == "train" else [])
        return ["--help"]
    if "--weights" in words or name == "embed":
        given = [word for word in words if re.match(r"(?!dataset|which)[a-z.]+=", word)]
        _composed(["framework=frozen", *given])
        return ["--help"]
    if any(word.startswith(("name=", "mine", "paths.outputs=")) or word == "grid" for word in words):
        return ["--help"]  # their grid is not trained here, nor the reader's own tables, nor is that folder there
    if name in ("table", "figure", "reproduce"):
        return [*words, "--dry-run"] if name == "reproduce" else words
    _composed(words)  # prepare needs data of its own
    return ["--help"]


def _code(name: str, words: list[str]) -> int:
    try:
        code: int = import_module(f"ssl_bench.commands.{name}").main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return code


def _composed(words: list[str]) -> None:
    """Compose the overrides of the first run, and check their values."""
    overrides = [w for w in first_values(words) if not w.startswith((*NOT_COMPOSED, "-"))]
    schema.check(compose.load(overrides))


def test_the_tables_of_options_name_options_that_exist() -> None:
    """A table of ``conf/README.md`` begins with its group. (A new option is no edit there: a test row is enough.)"""
    checked = 0
    for table in re.findall(r"(?:^\|.*\n)+", (ROOT / "conf" / "README.md").read_text(), re.M):
        group = re.match(r"\| (\w+) \|", table)
        if group is None or not (ROOT / "conf" / group[1]).is_dir():
            continue
        for row in table.splitlines()[2:]:
            for name in re.findall(r"`(\w+)`", row.split("|")[1]):
                assert (ROOT / "conf" / group[1] / f"{name}.yaml").is_file(), f"{group[1]}={name}"
                checked += 1
    assert checked > 80


def test_links_of_the_documents_lead_to_files_and_headings() -> None:
    checked = 0
    for page in (page for top in ("", "conf/**/", "scripts/**/", "ssl_bench/**/") for page in ROOT.glob(f"{top}*.md")):
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
            path, _, heading = link.partition("#")
            if "://" in path:
                continue
            target = page.parent / path if path else page
            assert target.exists(), f"{page}: {link}"
            if heading and target.suffix == ".md":
                titles = re.findall(r"^#+ (.*)", target.read_text().lower(), re.M)
                headings = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
                assert heading in headings, f"{page}: {link}"
            checked += 1
    assert checked > 30
