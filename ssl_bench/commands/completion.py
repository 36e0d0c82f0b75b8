"""``ssl-bench completion bash|zsh``: print a script that completes commands, flags, options and keys.

``eval "$(ssl-bench completion bash)"`` in ``~/.bashrc``. At every Tab the script calls ``ssl-bench completion --line``
with the line up to the cursor, which prints the candidates for its last word. Nothing is composed for that.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.commands import COMMANDS
from ssl_bench.commands.arguments import Parser

SCRIPT = """\
_ssl_bench() {
    local word reply
    COMPREPLY=()
    while IFS= read -r reply; do COMPREPLY+=("$reply"); done \\
        < <(ssl-bench completion --line "${COMP_LINE:0:$COMP_POINT}" 2>/dev/null)
    word="${COMP_LINE:0:$COMP_POINT}"
    word="${word##* }"
    case "$COMP_WORDBREAKS" in  # bash replaces only what stands after the last = or :
        *=*) word="${word%"${word##*[=:]}"}" ;;
        *) word="" ;;
    esac
    COMPREPLY=("${COMPREPLY[@]#"$word"}")
    case "${COMPREPLY[0]}" in
        *[=.]) compopt -o nospace 2>/dev/null ;;
    esac
}
complete -o default -F _ssl_bench ssl-bench
"""
ZSH = "autoload -Uz compinit bashcompinit; (( ${+functions[compdef]} )) || compinit -i; bashcompinit\n"
HYDRA = ("--help", "--version", "--multirun", "--cfg", "--resolve", "--package", "--config-dir", "--info")
FLAGS = {
    **dict.fromkeys(("train", "mi", "weight"), HYDRA),
    "evaluate": ("--help",),
    "export": ("--help", "--format", "--out"),
    "status": ("--help", "--runs", "--where", "--sort", "--watch", "--json", "--csv", "--failed"),
    "reproduce": ("--help", "--all", "--dry-run", "--recipe"),
    "table": ("--help", "--all", "--claims", "--format", "--long", "--wandb"),
    "figure": ("--help", "--all", "--out"),
    "report": ("--help", "--out", "--open", "--watch", "--host"),
    "prepare": ("--help", "--source", "--show"),
    "detect": (
        *("--help", "--data", "--images", "--out", "--epochs", "--batch", "--lr", "--warmup", "--sizes", "--seed"),
    ),
    "check": ("--help", "--quick", "--full", "--only", "--json"),
    "completion": ("--help", "--line"),
}
OWN_KEYS = {
    "evaluate": ("evaluate", "paths.data"),
    "export": (),
    "table": ("row", "col", "paths.outputs"),
    "figure": ("row", "col", "paths.outputs"),
    "report": ("paths.outputs",),
    "status": (),
    "detect": (),
    "check": ("devices", "paths.data", "paths.outputs"),
    "completion": (),
}


def main(arguments: Sequence[str]) -> int:
    """Print a script, or the candidates for a line."""
    parser = Parser("completion", __doc__.partition("\n")[0].replace("``", ""))
    parser.add_argument("shell", nargs="?", choices=("bash", "zsh"), help="the shell to complete for")
    parser.add_argument("--line", metavar="TEXT", help="print the candidates for the last word of a command line")
    options = parser.parse_args(arguments)  # the line may contain "="
    if options.line is not None:
        for candidate in sorted(set(candidates(options.line))):
            print(candidate)
    elif options.shell is None:
        parser.error("name a shell: bash or zsh")
    else:
        print((ZSH if options.shell == "zsh" else "") + SCRIPT, end="")
    return 0


def candidates(line: str) -> Iterator[str]:
    """Complete the last word of a command line: yield every candidate."""
    _, *words = line.split(" ")
    *before, word = words or [""]
    before = [each for each in before if each]
    if not before:
        choices: Iterator[str] = iter((*COMMANDS, "help"))
    else:
        choices = _choices(before[0], before[1:], word)
    yield from (choice for choice in choices if choice.startswith(word))


def _choices(command: str, before: Sequence[str], word: str) -> Iterator[str]:
    """All candidates for an argument of a command."""
    if command == "help":
        yield from COMMANDS
    if word.startswith("-"):
        yield from FLAGS.get(command, ())
    elif before and before[-1] == "--format":
        exports = ("timm", "torchvision", "card")
        yield from exports if command == "export" else ("rich", "md", "tex", "csv", "json")
    elif before and before[-1] in ("--cfg", "-c"):
        yield from ("job", "hydra", "all")
    elif before and before[-1] == "--only":
        yield from ("environment", "networks", "exact", "speed", "input", "accuracy", "plan")
    elif command == "completion":
        yield from ("bash", "zsh")
    elif "=" in word:
        key, _, value = word.partition("=")
        listed = value[: max(value.rfind(","), value.rfind("[")) + 1]  # loss=dcl,infonce or evaluate=[knn,linear]
        yield from (f"{key}={listed}{option}" for option in _options(command, key.lstrip("+")))
    else:
        if command in ("table", "figure", "reproduce"):
            from ssl_bench.papers import tables

            yield from (table.name for table in tables.every() if command != "figure" or table.x)
            for paper in tables.papers():
                if claims := tables.claims(paper):
                    yield from (f"{paper}/claims", *(claim.name for claim in claims))
        keys = OWN_KEYS.get(command) or (_keys(command, before, word) if command not in OWN_KEYS else ())
        yield from (f"{key}=" if not key.endswith(".") else key for key in keys)


def _options(command: str, key: str) -> Iterator[str]:
    """The options of a group."""
    from ssl_bench.config.schema import directory

    if key == "experiment" and command == "train":
        from ssl_bench.papers import experiments

        yield from experiments.names()
    yield from (path.stem for path in (directory() / key).glob("*.yaml"))


def _keys(command: str, before: Sequence[str], word: str) -> Iterator[str]:
    """Groups and keys; those inside of a group once its name and a point are typed."""
    from ssl_bench.config.schema import directory

    primary = command if command in ("mi", "weight") else "train"
    config = _read(directory() / f"{primary}.yaml")
    chosen = {k: v for entry in config.pop("defaults") if isinstance(entry, dict) for k, v in entry.items()}
    chosen |= dict(override.split("=", 1) for override in before if "=" in override)
    config.pop("hydra", None)
    groups = {entry.name for entry in directory().iterdir() if entry.is_dir() and entry.name in chosen}
    yield from groups
    if primary == "train":
        yield from ("experiment", "hydra/launcher")
    yield from _walk(config)
    group = word.partition(".")[0]
    if group not in groups:
        yield from (f"{name}." for name in groups if word)
        return
    for option in chosen[group] if isinstance(chosen[group], list) else [chosen[group]]:
        yield from _walk({group: _read(directory() / group / f"{option}.yaml")})


def _walk(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of a node's values, such as ``optimizer.lr``."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _walk(value, f"{prefix}{key}.")
        elif key not in ("_target_", "defaults"):
            yield f"{prefix}{key}"


def _read(path: Path) -> dict[str, Any]:
    """A file of options; nothing if it cannot be read."""
    import yaml

    try:
        content = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
