"""Compare the papers' numbers with the notes that they were transcribed from, which are not in this repository."""

import itertools
import os
import re
from pathlib import Path

import pytest

from tests.papers.test_papers import TABLES, numbers

FACTS = os.environ.get("SSL_BENCH_FACTS", "")


@pytest.mark.skipif(not FACTS, reason="set SSL_BENCH_FACTS to the notes that the numbers were transcribed from")
def test_every_number_is_in_the_notes() -> None:
    """Compare each row of the notes' Markdown tables with the row of the same name here, number by number."""
    text = Path(FACTS).read_text()

    def rows(heading: str) -> dict[str, list[str]]:
        lines = text[text.index(heading) :].splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("| "))
        block = list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))
        split = [
            [entry.strip() for entry in line.strip().removeprefix("|").removesuffix("|").split("|")]
            for line in block
            if "---" not in line
        ]
        return {f"{i} {' '.join(line[:2])}": line for i, line in enumerate(split)}

    def values(line: list[str], start: int = 1) -> list[float | None]:
        matches = [re.match(r"-?\d*\.?\d+", entry) for entry in line[start:]]
        return [float(match[0]) if match else None for match in matches]

    def listed(heading: str) -> list[list[str]]:
        return list(rows(heading).values())[1:]

    one = listed("Table 1 (reconstructed")
    for line, loss in zip(one, ("SimCLR", "DCL"), strict=True):
        assert values(line) == numbers("dcl/table1", f"ImageNet-100 {loss}") + numbers("dcl/table1", f"CIFAR-10 {loss}")
    remembered = re.search(r"C100 SimCLR ([\d. ]+); DCL ([\d. ]+)\.", text)
    assert remembered
    for printed, loss in zip(remembered.groups(), ("SimCLR", "DCL"), strict=True):
        assert [float(v) for v in printed.split()] == numbers("dcl/table1", f"CIFAR-100 {loss}")
    for line, row in zip(listed("Table 2 (kNN top-1)"), ("CIFAR-10", "CIFAR-100", "STL-10"), strict=True):
        assert values(line) == numbers("dcl/table2", row, "head")
        assert set(numbers("dcl/table2", row, "backbone")) <= {*values(line), None}
    rows3 = ("CIFAR-10", "CIFAR-100", "ImageNet-100", "ImageNet-1K")
    for line, row in zip(listed("Table 3\n| | Baseline"), rows3, strict=True):
        assert values(line) == numbers("dcl/table3", row)
    four = [values(line) for line in listed("Table 4 (IN-1K linear)")]
    assert list(zip(*four, strict=True)) == [tuple(numbers("dcl/table4", row)) for row in TABLES["dcl/table4"].rows()]

    for line in list(rows("Table 9 (toy)").values())[1:]:
        mi = re.match(r"MI (\d+)", line[0])
        assert mi
        pairs = [entry.split("/") for entry in line[1:]]
        for k, loss in enumerate(("NCE", "EqCo")):
            assert [float(pair[k]) for pair in pairs] == numbers("eqco/table9", f"MI {mi[1]} {loss}")

    # Numbers that the notes only have in sentences.
    in_sentences = set(re.findall(r"(?<![\d.])\d\d\.\d(?!\d)", text))
    scattered = [
        "dcl/fig3a",
        "dcl/fig3b",
        *(f"eqco/{n}" for n in ["table2", "table3", "table4", "table5", "table6", "fig2a", "fig2b", "fig3"]),
    ]
    for cell in (c for name in scattered for c in TABLES[name].cells if c.provenance in ("text", "code")):
        assert cell.reported in in_sentences, cell

    macl = listed("Table 2 (LE / kNN / S)")
    losses = ("InfoNCE", "DCL", "Dual", "MACL-a", "MACL-b")
    for line, (loss, measure) in zip(macl, itertools.product(losses, ("LE", "kNN", "S")), strict=True):
        assert values(line) == numbers("macl/table2", loss, measure)
    for line, loss in zip(listed("Table 3 (CIFAR100"), losses, strict=True):
        for k, measure in enumerate(("LE", "kNN", "S")):
            assert [float(entry.split("/")[k]) for entry in line[1:]] == numbers("macl/table3", loss, measure)
    found = re.search(
        r"Table 1 \(CIFAR10\): Fixed kNN ([\d.]+) LE ([\d.]+) \| Linear-1 ([\d.]+) / ([\d.]+) "
        r"\| .*?([\d.]+) / ([\d.]+)\.",
        text,
    )
    assert found
    both = [float(v) for v in found.groups()]
    assert both[0::2] == numbers("macl/table1", measure="kNN")
    assert both[1::2] == numbers("macl/table1", measure="LE")
    for pattern, row in (("MACL-a", "MACL-a"), (r"MACL-c\(w\)", "MACL-c")):
        sets = re.search(rf"{pattern} C10 ([\d./]+), C100 ([\d./]+), STL10 ([\d./]+[\d])", text)
        assert sets
        for k, measure in enumerate(("LE", "kNN", "S")):
            assert [float(v.split("/")[k]) for v in sets.groups()] == numbers("macl/table4", row, measure)

    names = ("NT-Xent", "Decoupled NT-Xent", "SWD normal", "SWD hypercube", "SWD hypersphere")
    for line in listed("Table 2 / A.2 / A.3"):
        head, size, *losses_ = line
        row = f"{head} layers, batch {size}"
        assert [float(v) for v in losses_[0].split()] == numbers("intriguing/table2", row)
        appendix = {"2": "intriguing/tableA2", "3": "intriguing/tableA3"}.get(head, "")
        for name, entry in zip(names, losses_, strict=True) if appendix else ():
            assert [float(v) for v in entry.split()] == numbers(appendix, f"{name}, batch {size}")
    for size, *losses_ in listed("Table A.1 CIFAR-10"):
        for name, entry in zip(names, losses_, strict=True):
            assert [float(v) for v in entry.split()] == numbers("intriguing/tableA1", f"{name}, batch {size}")
    for line in listed("Table 3 MultiDigits"):
        assert values(line) == numbers("intriguing/table3", line[0])
    rows4 = itertools.product(TABLES["intriguing/table4"].rows(), ("1st digit", "2nd digit"))
    for line, (row, measure) in zip(listed("Table 4 (2nd digit size"), rows4, strict=True):
        assert values(line, 2) == numbers("intriguing/table4", row, measure)
    notebook = re.search(r"tau \.05: ([\d. ]+); tau \.1: ([\d. ]+); tau \.2: ([\d. ]+)\.", text)
    assert notebook
    for printed, tau in zip(notebook.groups(), ("0.05", "0.1", "0.2"), strict=True):
        assert [float(v) for v in printed.split()] == numbers("intriguing/fig7_mnist", f"SimCLR tau {tau}")


@pytest.mark.skipif(not FACTS, reason="set SSL_BENCH_FACTS to the notes that the numbers were transcribed from")
def test_every_number_that_is_called_text_is_in_the_text() -> None:
    """The texts of the papers are beside the notes."""
    texts = {path.stem: path.read_text() for path in Path(FACTS).parent.glob("*.txt")}
    printed = {paper: {round(float(n), 4) for n in re.findall(r"\d*\.\d+", text)} for paper, text in texts.items()}
    called = [(t, cell) for t in TABLES.values() for cell in t.cells if cell.provenance == "text"]
    assert len(called) > 600
    assert [(t.name, cell.label, cell.paper) for t, cell in called if cell.paper not in printed[t.paper]] == []
