"""Lists of overrides such as ``loss=dcl``."""

from collections.abc import Sequence
from typing import Any


def flat(overrides: Any) -> list[str]:
    """Overrides of nested lists as one list; None is an empty one."""
    if overrides is None:
        return []
    return [o for entry in overrides for o in (flat(entry) if isinstance(entry, list) else [str(entry)])]


def merge(*parts: Sequence[str]) -> list[str]:
    """Join lists of overrides, keeping the last override of each key, at its place.

    ``~temperature`` removes the overrides of that group before it.
    """
    kept: dict[str, str] = {}
    for override in (o for part in parts for o in part):
        if override.startswith("~"):
            kept = {key: o for key, o in kept.items() if key.split(".")[0] != override[1:]}
            continue
        key = override.split("=", 1)[0]
        if kept.get(key) != override:
            kept.pop(key, None)
            kept[key] = override
    return list(kept.values())
