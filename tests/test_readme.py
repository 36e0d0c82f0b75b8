"""Every command line of every README, shortened, and the layout of README.md against the files.

A training is cut to one step on a very small network, a grid to its first run, and a table to its plan. A command that
needs a download, a cluster or more GPUs than there are is composed and checked, but not carried out.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from ssl_bench import cli
from ssl_bench.config import compose, schema
from tests.conftest import SMALL

ROOT = Path(__file__).parents[1]
READMES = ["README.md", "conf/README.md", "scripts/README.md", "ssl_bench/papers/README.md"]
READMES += ["ssl_bench/papers/measured/README.md"]
SETUP = ("pip ", "ruff ", "mypy", "pytest", "cd ", "export ", "git ")  # what installs and tests the package itself
OWN_DATA = "multi_digits|imagenet|cifar|stl10|mnist|bits"


def commands() -> Iterator[tuple[str, str]]:
    """File and text of every command line in a ```bash block, without comments."""
    for name in READMES:
        for block in re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                for command in re.split(r"\s&&\s|;\s", re.sub(r"(^|\s)#.*", "", line)):
                    if command.strip():
                        yield name, command.strip()


def first_values(overrides: list[str]) -> list[str]:
    """The overrides of the first run of a grid."""
    found = []
    for override in overrides:
        key, _, value = override.partition("=")
        found.append(f"{key}={value if value.startswith('[') else value.split(',')[0]}")
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run, which commands about a trained run may use."""
    folder = tmp_path_factory.mktemp("readme")
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, "max_steps=2", "backbone=resnet18_cifar"]
    command = [word for word in command if not word.startswith("backbone.width")]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(("readme", "command"), [pytest.param(*c, id=f"{c[0]}: {c[1]}"[:90]) for c in commands()])
def test_a_command_of_a_readme_works(
    readme: str, command: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    words = shlex.split(command.replace("...", ""))
    words = [w for w in words if not re.fullmatch(r"\w+=\S+", w) or w != words[0]]  # variables before a command
    if command.startswith(SETUP):
        return
    if words[0] in ("sbatch", "bash") or words[0].startswith("scripts/"):
        script = next(word for word in words if word.startswith("scripts/"))
        assert (ROOT / script).is_file()
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)
        words = words[words.index(script) + 1 :]
        return _composed([w for w in words if "=" in w])
    if words[0] == "wandb":
        assert (ROOT / words[-1]).is_file()
        return None
    if words[0] == "torchrun":
        return _composed([w for w in words[words.index("train") + 1 :] if "=" in w])
    if words[0] == "python" and words[1].startswith("scripts/"):
        help_text = [sys.executable, str(ROOT / words[1]), "--help"]
        subprocess.run(help_text, check=True, capture_output=True, cwd=ROOT)
        return None
    assert words[0] == "ssl-bench", f"{readme} has a command that nothing checks: {command}"
    _ssl_bench(words[1], words[2:], trained, capsys)
    return None


def _ssl_bench(name: str, words: list[str], trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in cli.COMMANDS
    main: Callable[[list[str]], int] = import_module(f"ssl_bench.commands.{name}").main
    flags = [w for w in words if "=" not in w or w.startswith("-")]
    overrides = [w for w in words if w not in flags]
    if name in ("train", "mi", "weight"):
        if "--help" in flags or "--cfg" in flags:
            assert _code(main, words) == 0
        elif "experiment=" in " ".join(overrides) or re.search(
            rf"={OWN_DATA}|slurm|devices=\d\d?", " ".join(overrides)
        ):
            _composed(first_values(overrides), name)
        else:
            short = {"train": [*SMALL, "max_steps=1"], "mi": ["steps=2", "evaluations=1"], "weight": []}[name]
            chosen = first_values([o for o in overrides if not o.startswith("hydra/launcher")])
            chosen = [o for o in chosen if not o.startswith(("hydra.", "epochs=", "devices="))]
            keys = {o.split("=")[0] for o in chosen}
            short = [s for s in short if s.split("=")[0] not in keys]
            assert _code(main, [*short, *chosen]) == 0, capsys.readouterr()
    elif name in ("evaluate", "status"):
        (run,) = trained.glob("outputs/default/*")
        words = [w.replace("outputs/default/<run_id>", str(run)).replace("RUN_DIR", str(run)) for w in words]
        assert _code(main, [w for w in words if w != "--watch"]) == 0, capsys.readouterr()
    elif name == "reproduce":
        assert _code(main, [*words, "--dry-run"]) == 0, capsys.readouterr()
    elif name in ("table", "figure"):
        assert _code(main, words) == 0, capsys.readouterr()
    else:  # prepare and detect need files that are not there: their arguments are only read
        assert _code(main, [*[w for w in words if w.startswith("--") and w != "--show"][:0], "--help"]) == 0
        _composed([o for o in overrides if not o.startswith(("export=", "paths."))])


def _code(main: Callable[[list[str]], int], words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def _composed(overrides: list[str], primary: str = "train") -> None:
    """Compose the overrides of a run, and check its values."""
    composed = compose.load(
        [o for o in first_values(overrides) if not o.startswith(("hydra", "experiment="))], primary=primary
    )
    if primary == "train":
        schema.check(composed)


def test_the_layout_names_every_file() -> None:
    """Each room of ``ssl_bench/`` with exactly the Python files that are in it, and every folder of the top level."""
    block = re.search(r"```text\n(conf/.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block is not None
    text: dict[str, str] = {}  # by room; "" is the root of the package
    room = ""
    for line in block[1].splitlines():
        if entry := re.match(r"  (\S+)", line):
            room = entry[1].strip("/") if entry[1].endswith("/") else ""
        elif not line.startswith(" "):
            room = line.split("/")[0]
        text[room] = text.get(room, "") + line + "\n"
    found: dict[str, set[str]] = {}
    for path in (ROOT / "ssl_bench").rglob("*.py"):
        folder = str(path.parent.relative_to(ROOT / "ssl_bench"))
        if path.name != "__init__.py" and folder != "objective/losses":
            found.setdefault("" if folder == "." else folder, set()).add(path.name)
    for folder, names in found.items():
        assert set(re.findall(r"\w+\.py\b", text[folder])) == names, folder
    assert {"conf", "ssl_bench", "scripts", "tests", "outputs"} <= text.keys()


def test_every_option_is_in_the_table_of_its_group() -> None:
    text = (ROOT / "conf" / "README.md").read_text()
    for folder in sorted((ROOT / "conf").iterdir()):
        if not folder.is_dir() or folder.name in ("experiment", "hydra", "local"):
            continue
        for option in folder.glob("*.yaml"):
            assert f"`{option.stem}`" in text or (folder.name == "batch_size" and "`b32`" in text), option


def test_the_figures_that_readme_shows_are_there() -> None:
    for name in READMES:
        for path in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
            if "://" not in path:
                assert (ROOT / name).parent.joinpath(path).exists(), f"{name}: {path}"
