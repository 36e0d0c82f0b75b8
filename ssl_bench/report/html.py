"""One HTML file with the data, the styles and all scripts in it: it needs no network and no other file.

The data and Plotly's script are compressed, and written in base64. So nothing in them can end the element that they are
in, and the file has half of the size. The curves are apart from the other data, since the first plot does not need
them. Browsers since 2023 can read it.
"""

import base64
import gzip
import json
import secrets
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "page"
PLOTLY = Path(__file__).parent / "plotly" / "plotly-cartesian.min.js"
SCRIPTS = (  # in the order in which they are run
    *("base.js", "state.js", "runs.js", "filter.js", "charts.js", "overview.js", "plots.js", "maps.js"),
    *("matters.js", "verdicts.js", "table.js", "curves.js", "selected.js", "detail.js", "main.js"),
)


def render(data: Mapping[str, Any], live: bool = False) -> str:
    """The page of a report.

    Args:
        live: the page reads its file again and again, since ``ssl-bench report --watch`` writes it again.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(SOURCE), autoescape=True, undefined=StrictUndefined)
    scripts = [(SOURCE / name).read_text() for name in SCRIPTS]
    return environment.get_template("page.html").render(
        title=data["outputs"],
        style=(SOURCE / "style.css").read_text(),
        scripts=scripts,
        plotly=_plotly(),
        data=_text({name: part for name, part in data.items() if name != "curves"}),
        curves=_text(data["curves"]),
        live=live,
        nonce=secrets.token_urlsafe(16),
    )


def _text(data: Any) -> str:
    """The data as compressed JSON in base64."""
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


@cache
def _plotly() -> str:
    """Plotly's script, compressed."""
    return base64.b64encode(gzip.compress(PLOTLY.read_bytes(), 6, mtime=0)).decode()
