"""The report: the keys that others read, a page that needs nothing but itself, and bad news that is not hidden."""

import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hand_made_runs import ORDINALS, PLAN, SETTINGS, kernel, solo, timesliced
from timeslice_demo.charts import timeline
from timeslice_demo.outcome import Outcome, make_outcome, summary
from timeslice_demo.report import html_page, write_report
from timeslice_demo.run_log import RunLog
from timeslice_demo.table import table

VOID_TAGS = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what a reader and a browser would want to know."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title"):
            self.text += data


def outcome(together: RunLog | None = None) -> Outcome:
    return make_outcome(PLAN, SETTINGS, solo(), together or timesliced(), ORDINALS)


def test_summary_has_the_keys_that_others_read(tmp_path: Path) -> None:
    write_report(outcome(), tmp_path / "new" / "folder")
    written = json.loads((tmp_path / "new" / "folder" / "summary.json").read_text())
    pools = {"sampler", "trainer"}
    for run in ("solo", "timesliced"):
        assert written[run]["wall_s"] > 0
        for share in ("held_share", "active_share", "mean_utilization"):
            assert set(written[run][share]) == pools
            assert all(0 <= value <= 1 for value in written[run][share].values())
    assert written["timesliced"]["handoffs"] == 4
    assert written["timesliced"]["handoff_overhead_ms"] == pytest.approx({"p50": 5, "p99": 10})
    assert written["timesliced"]["device_s_without_lease"] == 0
    assert written["bound_s"] == pytest.approx(0.408)
    assert written["efficiency_vs_bound"] == pytest.approx(0.408 / 0.441)
    assert written["identical"] is True
    assert written["weights_sha256"]["job-b"] == {"solo": "job-b-sha", "timesliced": "job-b-sha"}


def test_page_is_well_formed_and_loads_nothing() -> None:
    text = html_page(outcome())
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not {"src", "srcset", "data"} & set(attributes)
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert "url(http" not in text
    assert "@import" not in text


def test_pictures_are_valid_xml_with_both_runs_and_one_closer_look() -> None:
    text = html_page(outcome())
    pictures = [part.split("</svg>")[0] for part in text.split('<svg class="')[1:]]
    assert len(pictures) == 4
    for picture in pictures:
        ET.fromstring(f'<svg class="{picture}</svg>')
    assert pictures[0].count("job-a, step 1: generate") == 1
    assert pictures[1].count("swap: save") == 4
    assert pictures[1].count("swap: restore") == 2
    assert "swap" not in pictures[0]


def test_a_bar_too_narrow_for_its_words_shows_the_number_of_its_step() -> None:
    # 1.7 s on 902 units: a phase of 0.1 s has 53, one less than "train 1" takes.
    assert timeline(solo(), ORDINALS, 1.7).count('class="label">1<') == 4


def test_page_says_what_it_shows_in_words() -> None:
    text = Page(html_page(outcome())).text
    for sentence in (
        "the same results",
        "The GPUs are simulated: this shows scheduling and data integrity, not swap speed.",
        "Who had which GPU when",
        "The recording names no weight sync; 10 s before scaling are taken for it",
        "0 s of 0.4 s device time without a lease",
    ):
        assert sentence in text


def test_bad_news_stands_on_top_of_page_and_table() -> None:
    bad = outcome(timesliced(weights="other", extra=[kernel(20, 0, 50, 53)]))
    page = Page(html_page(bad)).text
    assert "the same results" not in page
    assert "Failed. job-b: the final weights of the time-sliced run differ" in page
    assert "NOT THE SAME" in table(bad)
    assert "FAILED: job-b: the final weights" in table(bad)
    assert "device time without a lease: 0.003 s" in table(bad)
    assert summary(bad)["identical"] is False


def test_table_names_what_is_compared() -> None:
    text = table(outcome())
    for words in ("1.040 of one after the other", "against the bound    0.925", "Nothing changed", "not swap speed"):
        assert words in text
