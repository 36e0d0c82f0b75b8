"""The report in a browser: Chromium, without a window."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssl_bench.commands import report as command
from ssl_bench.results.comparison import compare
from ssl_bench.results.matters import what_matters
from ssl_bench.results.table import read
from tests.report import runs
from tests.results.folders import OUTPUTS

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A window; no page in it may complain, or load anything but files."""
    monkeypatch.chdir(tmp_path)
    errors, requests = list[str](), list[str]()
    page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    yield page
    page.close()
    assert errors == []
    assert [url for url in requests if not re.match("file:|data:", url)] == []


def open_report(page: Page, view: str = "") -> None:
    """Open the report of the working directory's runs in a view."""
    if not Path("report.html").exists():
        assert command.main([]) == 0
    page.goto("about:blank")
    page.goto(Path("report.html").absolute().as_uri() + view)
    page.wait_for_selector("body[data-ready]")


def cells(page: Page, table: str, column: int) -> list[str]:
    return page.locator(f"#{table} tbody tr td:nth-child({column})").all_text_contents()


def test_filters_sorts_groups_and_compares(page: Page) -> None:
    folders = runs.grid()
    open_report(page)
    rows = page.locator("#run-table tbody tr")
    assert rows.count() == 24 and page.locator(".share span").count() == 2
    assert page.locator("#plots .plot").count() == 4  # over two settings, and a map for each loss

    page.fill("#filter", "loss=dcl, batch_size>=128")
    expect(rows).to_have_count(8)
    assert page.text_content("#filter-says") == "8 of 24 runs"
    page.fill("#filter", "colour=red")
    page.wait_for_selector("#filter[aria-invalid]")
    assert page.text_content("#filter-says") == "no run has the key colour"
    page.fill("#filter", "tau=0.1, loss=dcl,infonce, state!=diverged")
    expect(rows).to_have_count(12)
    page.fill("#filter", "")
    expect(rows).to_have_count(24)

    page.get_by_role("button", name="knn/top1 (%)").click()
    accuracies = cells(page, "run-table", 4)
    assert [*accuracies[:2], accuracies[-1]] == ["67.6", "66.6", ""]
    page.keyboard.press("Enter")  # the focus has stayed on the heading
    assert cells(page, "run-table", 4)[0] == "51.6"
    page.wait_for_function("location.hash.includes('sort=knn/top1')")

    page.get_by_text("Group by").click()
    page.locator("[data-focus='group loss']").check()
    page.locator("[data-focus='group batch_size']").check()
    assert page.locator("#group-table thead th").all_text_contents()[:3] == ["loss", "batch_size", "runs"]
    # 61.64, 62.64, 64.64 and 65.64: mean 63.64, deviation sqrt(10 / 3) = 1.83
    groups = page.locator("#group-table tbody tr").all_text_contents()
    assert len(groups) == 6 and groups[3] == "dcl64463.6 \u00b1 1.8 (4)"
    page.get_by_role("button", name="No groups").click()

    page.locator(f"[data-focus='select grid/{folders[0].name}']").check()
    page.locator(f"[data-focus='select grid/{folders[12].name}']").check()
    assert page.locator("#difference tbody tr").all_text_contents() == ["lossdclinfonce"]
    assert page.locator("#selected table").nth(1).locator("td").all_text_contents() == ["61.6", "51.6", "-10.0"]
    assert page.locator("#curves .legend li").count() == 2


def test_a_heat_map_has_the_means_over_seeds_and_their_number(page: Page) -> None:
    runs.grid()
    open_report(page)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws every plot
    maps = page.locator("#plots .multiples").last.locator(".js-plotly-plot")
    data = maps.evaluate_all("all => all.map(({ data: [it] }) => [it.x, it.y, it.z, it.text])")
    table = read(OUTPUTS).dropna(subset="knn/top1")
    values = table[["loss", "batch_size", "temperature.tau", "seed"]].itertuples(index=False, name=None)
    found = dict(zip(values, table["knn/top1"], strict=True))
    for (x, y, z, says), loss in zip(data, ("dcl", "infonce"), strict=True):
        assert (x, y) == (["64", "128", "256"], ["0.1", "0.4"])
        for row, tau in enumerate(y):
            for column, size in enumerate(x):
                numbers = [found[key] for seed in (0, 1) if (key := (loss, int(size), float(tau), seed)) in found]
                assert z[row][column] == pytest.approx(100 * sum(numbers) / len(numbers), abs=1e-9)
                assert says[row][column].endswith(f"<br>n={len(numbers)}")
    assert len(found) == 23


def test_comparisons_are_those_of_the_command(page: Page) -> None:
    runs.grid()
    open_report(page)
    headings = page.locator("#verdicts h3").all_text_contents()
    assert headings == ["loss", "batch_size", "temperature.tau"]
    for by, table in zip(headings, page.locator("#verdicts table").all(), strict=True):
        sheet = compare(read(OUTPUTS), by, metric="knn/top1").sheet()
        rows = [row.locator("th, td").all_text_contents() for row in table.locator("tr").all()]
        assert rows == [sheet.columns, *([entry.text for entry in row] for row in sheet.rows)] and rows[1:]


def test_a_phone_sees_verdicts_and_whole_plots(page: Page, browser: Browser) -> None:
    """Nothing is wider than the window, no bar lies over a plot, and no answer is in a box that scrolls sideways."""
    runs.grid()
    open_report(page)
    phone = browser.new_page(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    phone.goto(Path("report.html").absolute().as_uri())
    phone.wait_for_selector("body[data-ready]")
    phone.locator("#plots .plot").first.scroll_into_view_if_needed()
    phone.wait_for_selector("#plots .js-plotly-plot")
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    assert phone.locator(".modebar-group").count() == 0
    boxes = phone.locator("#matters .scroll, #verdicts .scroll")
    widths = boxes.evaluate_all("all => all.map((box) => [box.scrollWidth, box.clientWidth])")
    assert len(widths) == 4 and all(inner == outer for inner, outer in widths)
    difference, interval = (phone.locator("#matters tbody td").nth(n).bounding_box() for n in (0, 1))
    assert difference is not None and interval is not None and difference["y"] == interval["y"] < 844
    phone.close()


def test_the_answer_opens_the_report_and_experiments_are_listed(page: Page) -> None:
    runs.grid()
    runs.run("other/", 0.5, "dcl", 64, 0.1, 0)
    runs.run("other/", 0.7, "dcl", 64, 0.1, 1)
    open_report(page)
    experiments = page.locator("#experiments tbody tr").all()
    assert [row.locator("td").first.text_content() for row in experiments] == ["2 of 2", "23 of 24"]
    page.locator("[data-focus='to grid']").click()
    assert page.locator("main > section:not(:empty)").first.get_attribute("id") == "matters"
    told = what_matters(read(OUTPUTS / "grid"), "knn/top1")
    assert page.locator("#matters p").first.text_content() == told.title
    cells = [[cell.text for cell in row] for row in told.sheet().rows]
    rows = [row.locator("th, td").all_text_contents() for row in page.locator("#matters tbody tr").all()]
    assert rows == cells and len(rows) > 1
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    (line, *_) = page.locator("#plots .js-plotly-plot").first.evaluate("({ data }) => data")
    assert line["error_y"]["value"] == pytest.approx(0.5**0.5)  # two seeds of each cell, apart by a point


def test_a_link_with_state_opens_the_same_view(page: Page) -> None:
    folder, *_ = runs.grid()
    open_report(page, f"#where=loss=dcl&sort=-knn/top1&theme=dark&run=grid/{folder.name}&smooth=0.5")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("loss=dcl batch_size=b64 temperature.tau=0.1 seed=0")
    assert dialog.locator("img").get_attribute("alt") == "npc.png"
    page.wait_for_selector("dialog .js-plotly-plot")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.wait_for_function("!location.hash.includes('run=')")
    assert "where=loss=dcl" in page.url
    assert page.input_value("#filter") == "loss=dcl" and cells(page, "run-table", 4)[0] == "67.6"
    page.go_back()
    page.wait_for_selector("dialog[open]")
    page.get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Light").click()
    assert page.locator("html").get_attribute("data-theme") == "light"
    open_report(page, "#run=grid/nothing")
    expect(page.locator("dialog[open]")).to_contain_text("There is no run grid/nothing")


def test_everything_is_reached_by_the_keyboard(page: Page) -> None:
    folders = [f"grid/{folder.name}" for folder in runs.grid()]
    open_report(page)
    reached = set()
    for _ in range(110):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.focus ?? document.activeElement.id"))
    wanted = {"skip", "theme", "filter", "metric", "nav runs", "axis", "by", "menu group", "menu columns", "sort state"}
    assert wanted | {f"run {folders[0]}", f"select {folders[1]}"} <= reached
    page.locator(f"[data-focus='run {folders[2]}']").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")


def test_hostile_names_and_values_are_texts(page: Page) -> None:
    folder = runs.hostile()
    runs.run(f"{folder.parent.name}/", 0.2, "<b>bold</b>", 128, 0.4, 1, "")
    open_report(page)
    page.locator("#run-table tbody a").first.click()
    page.wait_for_selector("dialog[open] pre")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws every plot
    words = page.text_content("body") or ""
    assert runs.HOSTILE in words and folder.name in words and "<b>bold</b>" in words
    assert page.evaluate("window.hacked ?? null") is None
    assert page.locator("b, img[src='x'], main script, dialog script").count() == 0
