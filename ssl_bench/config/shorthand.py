"""Short forms of overrides, written out before Hydra reads them.

``batch_size=48`` is ``batch_size.size=48``. ``dataset=photos``, where there is a folder of that name, is
``dataset=folder dataset.root=photos``. ``loss=my_losses.py:Margin`` is a class of the user's own, whose arguments are
``loss.<argument>``.
"""

import re
from collections.abc import Sequence
from typing import Any

from ssl_bench import files
from ssl_bench.config import plugins
from ssl_bench.config.build import KINDS, find_target, signature

# The key of each group that a number sets: batch_size=48.
NUMBER_KEYS = {"batch_size": "size", "negatives": "k", "optimizer": "lr", "temperature": "tau"}
IN_FILE = re.compile(r"(.+\.py):(\w+)")
NOT_IN_FILE = {"dataset", "evaluate", "evaluate.on", "tracking"}  # groups that take no class of a file


def written_out(overrides: Sequence[str], datasets: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, Any]]]:
    """Write out short forms: plain overrides, and for each group set to FILE.py:CLASS that text and its node.

    Args:
        datasets: the options of the group ``dataset``.

    Raises:
        ConfigError: there is no such file or class.
    """
    plain, nodes = list[str](), dict[str, tuple[str, Any]]()
    for override in overrides:
        group, _, value = override.partition("=")
        if group in NUMBER_KEYS and re.match(r"[-.\d]", value):
            plain.append(f"{group}.{NUMBER_KEYS[group]}={value}")
        elif group in KINDS.keys() - NOT_IN_FILE and (given := IN_FILE.fullmatch(value)):
            nodes[group] = value, _node(given[1], given[2], group)
        elif group == "dataset" and value not in datasets and (place := files.given_path(value)).is_dir():
            kind = "arrays" if (place / "train_images.npy").is_file() else "folder"
            plain += [f"dataset={kind}", f'dataset.root="{value}"']
            files.say_once(f"dataset={value} is a folder here: dataset={kind} dataset.root={value}")
        else:
            plain.append(override)
    return plain, nodes


def _node(file: str, name: str, group: str) -> dict[str, Any]:
    """The node of a class in a file, with the defaults of its constructor."""
    node = {"_target_": f"{plugins.allow_file(file, group)}.{name}"}
    defaults = {key: one.default for key, one in signature(find_target(node, group))[0].items()}
    return node | {k: v for k, v in defaults.items() if isinstance(v, int | float | str | list | tuple | None)}


def implied(overrides: Sequence[str]) -> list[str]:
    """Options that a key implies: ``negatives.k=4`` without ``negatives=...`` implies ``negatives=random_k``."""
    keys = {override.partition("=")[0] for override in overrides}
    return ["negatives=random_k"] * ("negatives.k" in keys and "negatives" not in keys)
