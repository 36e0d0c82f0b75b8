"""Write the pages of ssl_bench: a tutorial and its notebook, the options of the configuration, and the docstrings.

``python scripts/build_docs.py [FOLDER]`` writes to FOLDER, by default outputs/docs; open index.html there. Warnings and
broken links are errors: then nothing is replaced, and the exit code is 1. Needs pdoc (``pip install -e .[dev]``).
"""

import argparse
import importlib
import importlib.util
import pkgutil
import re
import shutil
import sys
import tempfile
import warnings
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import ssl_bench
from ssl_bench.config.build import directory
from ssl_bench.objective import losses
from ssl_bench.objective.loss import Loss

# What other programs import. The other rooms carry out commands and are not an interface.
DOCUMENTED = ["api", "objective", "methods", "networks", "data", "evaluate", "distributed", "errors", "seeding"]

# Members from torch or Python are left out, and constructors of base classes, which pdoc does not show for all of them.
# Modules are listed where __all__ has none, too. A constructor's own text is that of torch: its arguments are described
# with the class. Long formulas are broken.
TEMPLATE = """
{% extends "default/module.html.jinja2" %}
{% block nav_submodules %}
    {% set top = "../" * module.modulename.count(".") %}
    <h2>Guides</h2><ul>
        <li><a href="{{ top }}tutorial.html">Tutorial</a> (<a href="{{ top }}tutorial.ipynb">notebook</a>)</li>
        <li><a href="{{ top }}grid.html">Grid</a></li>
        <li><a href="{{ top }}configuration.html">Configuration</a></li>
    </ul>
    {% for name in all_modules if name.rpartition(".")[0] == module.modulename %}
        {{ "<h2>Modules</h2><ul>" | safe if loop.first }}
        <li>{{ (name, "") | link(text=name.rpartition(".")[2]) }}</li>
        {{ "</ul>" | safe if loop.last }}
    {% endfor %}
{% endblock %}
{% block style %}{{ super() }}<style>.pdoc pre { white-space: pre-wrap; }</style>{% endblock %}
{% macro docstring(doc) %}{% if doc.name != "__init__" %}{{ default_docstring(doc) }}{% endif %}{% endmacro %}
{% macro is_public(doc) %}
    {% set inherited = doc.taken_from != (doc.modulename, doc.qualname) %}
    {% if doc.taken_from[0].startswith("ssl_bench") and not (inherited and doc.name == "__init__") %}
        {{ default_is_public(doc) }}
    {% endif %}
{% endmacro %}
"""


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font-family: sans-serif; line-height: 1.5; }}
pre {{ white-space: pre-wrap; background: #f6f6f6; padding: .5rem; }}</style></head>
<body><p><a href="ssl_bench.html">reference</a></p>{body}</body></html>
"""


def every_loss() -> list[type[Loss]]:
    """The losses in the order of their files."""
    names = (f"{losses.__name__}.{file.name}" for file in pkgutil.iter_modules(losses.__path__))
    pairs = [(m.__name__, each) for m in map(importlib.import_module, names) for each in vars(m).values()]
    return [
        each for name, each in pairs if isinstance(each, type) and issubclass(each, Loss) and each.__module__ == name
    ]


def _table_of_losses() -> str:
    """The formulas of the losses in Markdown."""
    rows = [("loss", "value per anchor", "gradient per anchor", "public code"), ("---",) * 4]
    rows += [(f"`{loss.__name__}`", loss.equation, loss.gradient, loss.code) for loss in every_loss()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _configuration() -> str:
    """Every file of conf/, whose comments say what its keys are."""
    parts = [f"<h1>Configuration</h1><pre>{escape((directory() / 'train.yaml').read_text(encoding='utf-8'))}</pre>"]
    for path in sorted(directory().glob("*/*.yaml")):
        if path.parent.name not in ("local", "experiment"):
            option, text = f"{path.parent.name}={path.stem}", escape(path.read_text(encoding="utf-8"))
            parts.append(f'<h2 id="{option}">{option}</h2><pre>{text}</pre>')
    return "\n".join(parts)


def notebook(page: str) -> Any:
    """A page of scripts/examples as a notebook: each block of Python or of commands is a cell, and so is other text."""
    from nbformat import v4  # of the dev extra

    cells = []
    for text, kind, code in re.findall(r"(.*?)(?:```(bash|python)\n(.*?)```|\Z)", page, re.DOTALL):
        cells += [v4.new_markdown_cell(text.strip())] if text.strip() else []
        cells += [v4.new_code_cell("%%script bash -e\n" * (kind == "bash") + code.rstrip())] if code else []
    return v4.new_notebook(cells=cells)


def write(folder: Path) -> None:
    """Write the pages to ``folder``, which is empty or absent. A warning is raised as an error."""
    import jinja2
    import markdown2  # of pdoc
    import nbformat
    import pdoc  # of the dev extra

    walked = pkgutil.walk_packages(ssl_bench.__path__, "ssl_bench.")
    names = [module.name for module in walked if module.name.split(".")[1] in DOCUMENTED]
    losses.__doc__ = f"{losses.__doc__}\n{_table_of_losses()}\n"
    pdoc.render.configure(docformat="google", show_source=False)
    default = pdoc.render.env.loader
    assert default is not None
    pdoc.render.env.loader = jinja2.ChoiceLoader([jinja2.DictLoader({"module.html.jinja2": TEMPLATE}), default])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # pdoc finds some of the modules itself, and no base of a TypedDict.
        warnings.filterwarnings("ignore", "The module specification|Cannot determine where")
        pdoc.pdoc("ssl_bench", *names, output_directory=folder)
    guides = {"Configuration": _configuration()}
    for path in (Path(__file__).parent / "examples").glob("*.md"):
        text = path.read_text(encoding="utf-8").replace(".md)", ".html)")  # links between these pages
        guides[path.stem.capitalize()] = markdown2.markdown(text, extras=["fenced-code-blocks"])
    tutorial = (Path(__file__).parent / "examples" / "tutorial.md").read_text(encoding="utf-8")
    (folder / "tutorial.ipynb").write_text(
        nbformat.writes(notebook(tutorial.replace(".md)", ".html)"))), encoding="utf-8"
    )
    for title, body in guides.items():
        (folder / f"{title.lower()}.html").write_text(PAGE.format(title=title, body=body), encoding="utf-8")


def broken_links(folder: Path) -> list[str]:
    """Links of the pages in ``folder`` that lead nowhere, and names of this package that do not exist; a line each.

    Links to other sites are not followed. Names that pdoc knows are links, and others stand alone in ``<code>``.
    """
    texts = {path.resolve(): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.html"))}
    pages = {path: re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL) for path, text in texts.items()}
    ids = {path: set(re.findall(r' id="([^"]+)"', text)) for path, text in pages.items()}
    found = []
    for path, text in pages.items():
        place = path.relative_to(folder.resolve())
        for href in re.findall(r'<a [^>]*href="([^"]+)"', text):
            link = urlsplit(unescape(href))
            if link.scheme or link.netloc:
                continue
            target = (path.parent / unquote(link.path)).resolve() if link.path else path
            if not target.is_file():
                found.append(f"{place}: {href} is not a file")
            elif link.fragment and unquote(link.fragment) not in ids[target]:
                found.append(f"{place}: {href} is not on that page")
        names = re.findall(r"<code>(ssl_bench(?:\.\w+)+)</code>", text)
        found += [f"{place}: {name} does not exist" for name in names if not _exists(name)]
    return found


def build(folder: Path) -> list[str]:
    """Write the pages and return their broken links; earlier pages in ``folder`` are replaced if there are none.

    Raises:
        FileExistsError: ``folder`` has files that are not such pages.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "search.js").exists():
        raise FileExistsError(f"{folder} has other files: name another folder")
    with tempfile.TemporaryDirectory() as temporary:
        new = Path(temporary) / "docs"
        write(new)
        found = broken_links(new)
        if not found:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(new, folder)
    return found


def _exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("outputs/docs"))
    folder = parser.parse_args().folder
    if importlib.util.find_spec("pdoc") is None:
        sys.exit("the pages need pdoc: pip install -e '.[dev]', or pip install pdoc")
    found = build(folder)
    print("\n".join(found) or f"wrote {folder / 'index.html'}", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
