"""The HTML report: what it holds, that hostile names do nothing, and how it behaves in a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil

import pytest

from lowbit.models import Histogram, Latency, ModelReport, WeightRow
from lowbit.report import html, write_html
from report_examples import HOSTILE, histogram, hostile, plausible, rows_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def embedded(page: str) -> dict:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(block)


# ---- without a browser ---------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [plausible(), hostile(), ModelReport("m", "", "onnx", {}, [], 0, 0)], ids=str)
def test_the_page_holds_the_report_itself(report):
    assert embedded(html(report)) == report.to_dict()


def test_names_are_escaped_everywhere():
    page = html(hostile())
    assert "<img" not in page
    assert page.count("</script>") == 2  # the data's and the script's own
    assert "<!--" not in page


def test_nothing_is_loaded_from_elsewhere():
    page = html(plausible())
    addresses = set(re.findall(r"https?://[^\s\"']+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.findall(r"<link (?!rel=\"icon\" href=\"data:,\")|<iframe|@import|url\(|\bimport\(|fetch\(", page)


def test_the_headline_says_size_speed_metric_and_coverage():
    report = plausible()
    page = html(report)
    for words in ("minilm-l6.onnx", "dynamic-int8", f"{report.ratio:.2f}×", "2.05–2.28×", "81.95", "of 40"):
        assert words in page
    assert "1 weight was requested but not quantized" in page
    assert "float is faster at this shape" in page


def test_a_slower_model_is_not_called_faster():
    page = html(plausible().but(latency=(Latency("ort", "1", 1, 5.0, 10.0),)))
    assert '<div class="tile bad"><dt>Speed-up</dt><dd>0.50×</dd>' in page
    assert "0.50× as fast: slower" in page


def test_without_measurements_it_says_so():
    page = html(plausible().but(latency=(), accuracy=(), metrics=(), histograms=()))
    assert page.count("not measured") == 2
    assert "The models were not run" in page
    assert 'id="gallery"' not in page


def test_very_many_layers_stay_small_and_keep_the_worst():
    rows = rows_of(5000)
    rows[1234] = WeightRow("the.worst", "MatMul", (8, 8), "float32", "int2", sqnr_db=-4.5)
    page = html(plausible().but(rows=rows, histograms=[histogram(r.name) for r in rows[:24]]))
    assert len(page.encode()) < 3_000_000
    bars = re.findall(r'<rect class="bar ', page)
    assert len(bars) <= 240
    assert "the.worst\nMatMul, int2\n170 % (−4.5 dB)\nthe largest of 21 neighbours" in page


def test_a_claimed_error_cannot_blow_the_page_up():
    rows = [WeightRow("a", "Conv", (1,), "float32", "int8", sqnr_db=1e300)]
    assert len(html(ModelReport("m", "", "onnx", {}, rows, 1, 1))) < 60_000


def test_a_failed_write_leaves_the_old_page(tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises((TypeError, ValueError)):
        write_html(plausible().but(machine={"clock": object()}), target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


# ---- in Chromium ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on the path; on Debian: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with api.sync_playwright() as playwright:
        # As root, which containers are, Chromium has no sandbox; the pages are our own.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A report in a page; afterwards: nothing in the console, and no request but for the file."""
    problems: list[str] = []
    requests: list[str] = []
    contexts = []

    def go(report: ModelReport, width: int = 1200, scheme: str = "light"):
        path = tmp_path / f"report{len(contexts)}.html"
        write_html(report, path)
        seen = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=seen, color_scheme=scheme, reduced_motion="reduce"))
        page = contexts[-1].new_page()
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert problems == []
    assert all(url.startswith(("file:///", "blob:", "data:")) for url in requests)
    assert sum(url.startswith("file:///") for url in requests) == len(contexts)


def names(page) -> list[str]:
    return page.locator("#layers tr.row td:first-child").all_inner_texts()


def test_headings_sort_the_table(opened):
    page, report = opened(plausible()), plausible()
    before = names(page)
    assert before == [r.name for r in report.rows]
    heading = page.locator("#layers th", has_text="SQNR dB")
    heading.locator("button").click()
    known = sorted((r for r in report.rows if r.sqnr_db is not None), key=lambda r: r.sqnr_db)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert names(page)[: len(known)] == [r.name for r in known] != before[: len(known)]
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert names(page)[: len(known)] == [r.name for r in reversed(known)]  # those without stay last
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "none"
    assert names(page) == before


def test_names_sort_by_their_numbers(opened):
    rows = [WeightRow(f"layer.{i}.w", "Conv", (8, 8), "float32", "int8") for i in (10, 9, 100, 1)]
    page = opened(plausible().but(rows=rows))
    page.locator("#layers th button", has_text="Name").click()
    assert names(page) == ["layer.1.w", "layer.9.w", "layer.10.w", "layer.100.w"]


def test_numbers_that_are_none_sort_last(opened):
    values = (3.0, math.nan, math.inf, None, -math.inf, 1.0)
    rows = [WeightRow(f"w{i}", "Conv", (8, 8), "float32", "int8", sqnr_db=s) for i, s in enumerate(values)]
    page = opened(plausible().but(rows=rows))
    page.locator("#layers th button", has_text="SQNR dB").click()
    assert names(page) == ["w4", "w5", "w0", "w2", "w1", "w3"]
    cells = page.locator("#layers tr.row td:nth-child(8)").all_inner_texts()
    assert cells == ["−∞", "1.0", "3.0", "no error", "not a number", ""]


def test_filters_narrow_the_table(opened):
    page, report = opened(plausible()), plausible()
    page.locator("#filter").fill("MLP down")
    expected = [r.name for r in report.rows if "mlp.down" in r.name]
    assert names(page) == expected
    assert page.locator("#shown").inner_text() == f"{len(expected)} of 40 layers"
    page.locator("#filter").fill("")
    page.locator("#state").select_option("skipped")
    assert names(page) == ["pooler.dense.weight"]
    page.locator("#state").select_option("")
    page.locator("#kind").select_option("Conv")
    assert names(page) == ["stem.conv.weight"]
    page.locator("#filter").fill("nothing like this")
    assert names(page) == []
    assert page.get_by_text("No layer matches.").is_visible()


def test_a_row_shows_its_histogram_and_hides_it(opened):
    page = opened(plausible())
    row = page.locator("#layers tr.row").nth(2)
    button = row.locator("button")
    row.locator("td").nth(1).click()
    assert button.get_attribute("aria-expanded") == "true"
    shown = page.locator("#layers tr.detail figure")
    assert shown.locator(".name").inner_text() == plausible().rows[2].name
    assert shown.locator("svg path.spread").count() == 1
    assert shown.locator("line.clip").count() == 2
    assert "about 0.1" in shown.inner_text()
    button.press("Enter")
    assert page.locator("#layers tr.detail").count() == 0
    page.locator("#layers tr.row").last.locator("button").click()
    assert "There is no histogram" in page.locator("#layers tr.detail").inner_text()


def test_the_share_outside_is_counted_from_the_bins(opened):
    h = histogram("w")
    total = type(h)("w", (0.0, 1.0, 2.0, 3.0, 4.0), (10, 40, 40, 10), (0.5, 3.0))
    rows = [WeightRow("w", "Conv", (8, 8), "float32", "int8", sqnr_db=9.0)]
    page = opened(plausible().but(rows=rows, histograms=(total,)))
    assert "about 15 % of the values" in page.locator("#gallery").inner_text()


@pytest.mark.parametrize("clip", [(-4.43, 4.43), (-0.2, 0.3), (-0.636, 9.0), None])
def test_a_histograms_axis_says_what_lies_at_its_ends(opened, clip):
    counts = (3, 0, 40, 12)
    h = Histogram("w", (-0.636, -0.3, 0.0, 0.3, 0.62), counts, clip)
    rows = [WeightRow("w", "Conv", (8, 8), "float32", "int8", sqnr_db=9.0)]
    page = opened(plausible().but(rows=rows, histograms=(h,)))
    left, right = (float(t.replace("−", "-")) for t in page.locator("#gallery .axis span").all_inner_texts())
    svg = page.locator("#gallery svg")
    labels = [s.bounding_box() for s in page.locator("#gallery .axis span").all()]
    frame = svg.bounding_box()
    # Positions in the picture, as numbers on the axis that the labels stand for.
    path = svg.locator("path.spread").get_attribute("d")
    at = [float(v) for v in re.findall(r"[MH]([0-9.]+)", path)]
    lines = [float(line.get_attribute("x1")) for line in svg.locator("line.clip").all()]
    ends = [min([*at, *lines]), max([*at, *lines])]
    value = lambda x: left + (x - ends[0]) / (ends[1] - ends[0]) * (right - left)  # noqa: E731
    assert [value(x) for x in at] == pytest.approx(h.edges, abs=0.01 * (right - left))
    assert [value(x) for x in lines] == pytest.approx(clip or [], abs=0.01 * (right - left))
    # The labels stand below the ends: within a hundredth of the picture's width.
    assert labels[0]["x"] == pytest.approx(frame["x"] + frame["width"] * ends[0] / 1000, abs=0.01 * frame["width"])
    end = labels[1]["x"] + labels[1]["width"]
    assert end == pytest.approx(frame["x"] + frame["width"] * ends[1] / 1000, abs=0.01 * frame["width"])


def test_the_error_chart_draws_errors_on_its_axis(opened):
    """Bars and ticks by the numbers: 20 dB is 10 %, 40 dB is 1 %, and the bar of the worse is the taller."""
    values = (20.0, 40.0, 46.02, math.inf, 26.02)
    rows = [WeightRow(f"w{i}", "Conv", (8, 8), "float32", "int8", sqnr_db=s) for i, s in enumerate(values)]
    page = opened(plausible().but(rows=rows))
    ticks = page.evaluate(
        "[...document.querySelectorAll('#errors .ticks i')].map((i) => [parseFloat(i.style.bottom), i.innerText])"
    )
    by_text = {text.strip(): at for at, text in ticks}
    assert set(by_text) == {"0.1 %", "1 %", "10 %"}
    heights = [float(bar.get_attribute("height")) for bar in page.locator("#errors rect.bar").all()]
    assert heights[0] == pytest.approx(by_text["10 %"])
    assert heights[1] == pytest.approx(by_text["1 %"])
    assert by_text["0.1 %"] == 0
    assert heights[3] < 1  # no error
    assert heights[0] > heights[4] > heights[1] > heights[2] > heights[3]
    assert page.locator("#section-error").inner_text().count("Lower is better") == 1
    worst = page.locator(".worst li").first.inner_text()
    assert "10 % (20.0 dB)" in worst


def test_pictures_are_there(opened):
    page, report = opened(plausible()), plausible()
    known = [r for r in report.rows if r.sqnr_db is not None]
    bars = page.locator("#errors rect.bar")
    assert bars.count() == len(known)
    heights = [float(bars.nth(i).get_attribute("height")) for i in range(len(known))]
    assert heights.index(max(heights)) == min(range(len(known)), key=lambda i: known[i].sqnr_db)  # taller is worse
    assert page.locator("#section-sizes .sizes svg").count() == 2
    assert page.locator("#section-sizes .sizes svg").first.locator("rect").count() == 5  # four kinds and the rest
    assert page.locator("#section-sizes .largest li").count() == 10
    assert page.locator("#gallery figure").count() == 6
    assert page.locator("#section-measured path.interval").count() == 4
    for svg in page.locator("svg").all()[:6]:
        box = svg.bounding_box()
        assert box["width"] > 100
        assert box["height"] > 5


def test_a_bar_leads_to_its_layer(opened):
    page = opened(plausible())
    page.locator("#filter").fill("nothing like this")
    page.locator("#errors g").nth(5).click()
    assert page.locator("#layers tr.open").get_attribute("data-index") == "5"
    page.locator(".worst button").first.click()
    assert page.locator("#layers tr.open").count() == 2


def test_any_histogram_can_be_chosen(opened):
    page = opened(plausible())
    page.locator("#histogram").select_option(label="embeddings.word.weight (weight)")
    assert page.locator("#gallery figure .name").all_inner_texts() == ["embeddings.word.weight"]


def test_hostile_names_are_text(opened):
    page = opened(hostile())
    for row in page.locator("#layers tr.row button").all():
        row.click()
    page.locator("#filter").fill("img")
    page.locator("#layers th button").first.click()
    assert page.title() != "owned"
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("#layers tr.row button").all_inner_texts()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200


def test_thousands_of_layers_are_drawn_as_they_are_reached(opened):
    page = opened(plausible(5000))
    assert 200 <= page.locator("#layers tr.row").count() < 1000
    assert page.locator("#shown").inner_text() == "5,000 layers"
    page.locator("#filter").fill("stem.conv")
    assert names(page) == ["stem.conv.weight"]


def test_paper_gets_every_layer(opened):
    page = opened(plausible(700))
    assert page.locator("#layers tr.row").count() < 700
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#layers tr.row").count() == 700


def test_dark_and_light(opened):
    colour = "getComputedStyle(document.body).backgroundColor"
    light, dark = opened(plausible()), opened(plausible(), scheme="dark")
    assert light.evaluate(colour) == "rgb(251, 251, 250)"
    assert dark.evaluate(colour) == "rgb(20, 22, 26)"
    for page, other in ((light, dark), (dark, light)):
        seen = other.evaluate(colour)
        page.locator("#theme").click()
        assert page.evaluate(colour) == seen
        page.locator("#theme").click()
    dark.emulate_media(media="print")
    assert dark.evaluate(colour) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("report", [plausible(), hostile()], ids=["plausible", "hostile"])
def test_a_phone_never_scrolls_sideways(opened, report):
    page = opened(report, width=360)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    cell = page.locator("#layers tr.row").first.locator("td").nth(1)
    assert cell.evaluate("e => getComputedStyle(e).display") == "block"
    page.locator("#layers th button", has_text="SQNR dB").click()
    page.locator("#layers tr.row button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_json_can_be_downloaded(opened):
    page = opened(plausible())
    with page.expect_download() as waiting:
        page.locator("#download").click()
    assert json.loads(waiting.value.path().read_text()) == plausible().to_dict()
    assert waiting.value.suggested_filename == "report.json"


def test_an_empty_report_opens(opened):
    page = opened(ModelReport("m.onnx", "", "onnx", {}, [], 0, 0))
    assert page.get_by_text("The model has no weights").is_visible()
