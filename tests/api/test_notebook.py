"""A notebook, run by a kernel: what its cells show of a training, of tables and of figures."""

import base64
import io
from typing import Any

import pytest
from PIL import Image

import ssl_bench
from tests.conftest import SMALL

RUN = [*SMALL, "max_steps=1", "evaluate=knn"]
CELLS = {
    "train": f"import ssl_bench\nssl_bench.train({[*RUN, 'loss=infonce,dcl', 'seed=0,1']}, name='mine', jobs=2)",
    "runs": "ssl_bench.runs(where={'state': 'finished'})",
    "compare": "ssl_bench.compare()",
    "table": "ssl_bench.table(rows='loss')",
    "figure": "ssl_bench.figure(lines='loss')",
    "matters": "ssl_bench.compare().figure()",
    "views": "ssl_bench.show_views(['seed=1'])",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of the cells."""
    reason = "notebooks need the extra dev"
    nbformat = pytest.importorskip("nbformat", reason=reason)
    nbclient = pytest.importorskip("nbclient", reason=reason)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS.values()])
    place = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3", allow_errors=True, resources=place)
    client.execute()
    return {name: cell["outputs"] for name, cell in zip(CELLS, book.cells, strict=True)}


def shown(outputs: list[Any]) -> Any:
    """What the last line of a cell shows, by its type."""
    (answer,) = [output for output in outputs if output["output_type"] == "execute_result"]
    return answer["data"]


def picture(outputs: list[Any]) -> Image.Image:
    content = base64.b64decode(shown(outputs)["image/png"])
    assert content.startswith(b"\x89PNG")
    return Image.open(io.BytesIO(content)).convert("RGB")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")  # of the client of notebooks
def test_a_notebook_shows_tables_and_pictures(outputs: dict[str, list[Any]]) -> None:
    said = "".join(output.get("text", "") for output in outputs["train"])
    assert "4 of 4  loss=" in said and "4 runs: 4 trained" in said, outputs["train"]
    for name in ("train", "runs"):
        page = shown(outputs[name])["text/html"]
        assert page.count("<td>finished</td>") == 4 and page.count("<th>knn/top1</th>") == 1
    text = shown(outputs["compare"])["text/plain"]
    assert "knn/top1, percent: " in text and "largest difference" in text
    assert "<th>mean</th>" in shown(outputs["table"])["text/html"]
    for name in ("figure", "matters"):
        drawn = picture(outputs[name])
        assert min(drawn.size) > 300 and len(set(drawn.getdata())) > 20
    assert picture(outputs["views"]).tobytes() == ssl_bench.show_views(["seed=1"]).tobytes()
