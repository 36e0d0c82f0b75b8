"""Every section, equation, table and figure of the five papers that is cited here exists in its paper."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def numbers(last: int, *further: str) -> set[str]:
    return {*map(str, range(1, last + 1)), *" ".join(further).split()}


HAS: dict[str, dict[str, set[str]]] = {  # what the texts have; MACL's sections have no numbers
    "dcl": {
        "section": numbers(5, "2.1 2.2 2.3 4.1 4.2 4.3 4.4"),
        "equation": numbers(6),
        "table": numbers(4),
        "figure": numbers(4, "1a 1b 3a 3b 4a 4b 4c"),
        "proposition": numbers(2),
    },
    "eqco": {
        "section": numbers(4, "2.1 2.2 2.3"),
        "appendix": numbers(0, "A A.1 A.2 B B.1 B.2 B.5 C"),
        "equation": numbers(15),
        "table": numbers(9),
        "figure": numbers(4, "2a 2b"),
        "theorem": numbers(2),
    },
    "macl": {"equation": numbers(15), "table": numbers(4), "figure": numbers(3)},
    "less": {
        "section": numbers(4),
        "equation": numbers(3),
        "figure": numbers(4, "1a 1b 1c 2a 2b 3a 3b 4a 4b 4c 4d"),
    },
    "intriguing": {
        "section": numbers(6, "3.1 3.2 4.1 4.2 4.3 4.4"),
        "appendix": numbers(0, "A A.1 A.2 A.3 B B.1 B.2"),
        "equation": numbers(4),
        "table": numbers(4, "A.1 A.2 A.3"),
        "figure": numbers(7, "3a 3b 5a 5b 5c 6a 6b A.1 A.2 B.1 B.2 B.3"),
        "algorithm": numbers(1),
    },
}
NAMES = {
    **{"DCL": "dcl", "Decoupled Contrastive Learning": "dcl", "EqCo": "eqco", "MACL": "macl"},
    **{"Model-Aware Contrastive Learning": "macl", "Less can be more": "less", "Intriguing properties": "intriguing"},
}
OTHERS = "SimCLR|MoCo|CLD|BYOL|NNCLR|CPC"  # works with places of their own
NUMBER = r"(?:(?:[A-C]\.)?\d+(?:\.\d)?[a-d]?|[A-C])(?![\w%]|\.\d)"
AND = ", and | and | to |, "
KINDS = {"eq.": "equation", "appendices": "appendix"}
PLACE = re.compile(
    r"\b(?i:(section|eq\.|equation|figure|table|appendix|appendices|theorem|proposition|algorithm)s?) "
    rf"({NUMBER}(?:(?:{AND}){NUMBER})*)"
)


def missing(text: str, paper: str | None) -> Iterator[str]:
    """The places in a text that do not exist.

    A place is of the work that is named last in the 70 characters before it, up to a semicolon or another key, and else
    of ``paper``.
    """
    of_name = {name.lower(): owner for name, owner in NAMES.items()}
    pattern = re.compile("|".join(NAMES if paper else [*NAMES, OTHERS]), re.IGNORECASE)
    for place in PLACE.finditer(text):
        before = re.split(r"[;|]| \w+: ", text[max(0, place.start() - 70) : place.start()])[-1]
        named = pattern.findall(before)
        owner = of_name.get(named[-1].lower()) if named else paper
        kind = KINDS.get(place[1].lower(), place[1].lower())
        for number in re.split(AND, place[2]) if owner else ():
            if number not in HAS[str(owner)].get(kind, ()):
                yield f"{owner} has no {kind} {number}: {text[max(0, place.start() - 60) : place.end()]}"


def words(path: Path) -> str:
    return " ".join(re.sub(r"^\s*#", "", path.read_text(), flags=re.MULTILINE).split())


def test_the_places_that_are_cited_exist() -> None:
    wrong = []
    for path in (p for folder in ("ssl_bench", "conf") for p in (ROOT / folder).rglob("*.*")):
        if path.suffix in (".py", ".yaml", ".md") and path.parent.name != "measured":
            paper = path.stem if path.parent.name == "papers" and path.stem in HAS else None
            wrong += [f"{path.name}: {each}" for each in missing(words(path), paper)]
    assert not wrong, "\n".join(wrong)


def test_a_place_that_a_paper_lacks_is_found() -> None:
    assert list(missing("the bound (EqCo, Zhu et al. 2020, section 3.1)", None))
    assert not list(missing("the bound (EqCo, Zhu et al. 2020, section 2.1); SimCLR, section 3.1", None))
    assert len(list(missing("where: figures 1 and 5; MACL, equations 14 and 16", "dcl"))) == 2
