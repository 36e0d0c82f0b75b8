"""The losses, one file each: ``loss(contrast, tau) -> [V, B]``, a value per anchor, unreduced.

s is the cosine of an anchor and its positive, s_k those of its K negatives, l = log sum_k exp(s_k / tau) and
u = l - s / tau the log-odds against the positive; sg stops the gradient.

Every subclass of Loss in a file of this folder can be imported from here, without being listed: its file is found and
imported when it is asked for.

.. include:: README.md
"""

import importlib
import re
from pathlib import Path
from typing import Any


def __getattr__(name: str) -> Any:
    for file in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        if re.search(rf"^class {re.escape(name)}\(", file.read_text(encoding="utf-8"), re.MULTILINE):
            return getattr(importlib.import_module(f"{__name__}.{file.stem}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
