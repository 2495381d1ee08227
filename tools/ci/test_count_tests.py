"""What the last line of .ci/run says is what ran."""

from __future__ import annotations

import json
from pathlib import Path

from count_tests import count, count_run

XML = """<testsuites><testsuite name="s"><testcase name="a"/><testcase name="b"><failure/></testcase>
<testcase name="c"><skipped/></testcase><testcase name="d"><error/></testcase></testsuite></testsuites>"""


def result(label: str, status: str, xml: Path | None) -> str:
    output = [{"name": "test.xml", "uri": xml.as_uri()}] if xml else []
    return json.dumps(
        {"id": {"testResult": {"label": label}}, "testResult": {"status": status, "testActionOutput": output}}
    )


def test_cases_are_counted_by_outcome(tmp_path: Path) -> None:
    xml = tmp_path / "a folder" / "test.xml"
    xml.parent.mkdir()
    xml.write_text(XML)
    total, problems = count([result("//a:t", "FAILED", xml)])
    assert (total["passed"], total["failed"], total["skipped"]) == (1, 2, 1)
    assert problems == ["//a:t: FAILED"]


def test_a_target_that_timed_out_without_a_report_is_a_failure() -> None:
    total, problems = count([result("//a:t", "TIMEOUT", None)])
    assert (total["passed"], total["failed"]) == (0, 1)
    assert problems == ["//a:t: TIMEOUT"]


def test_a_target_that_passed_without_running_anything_is_a_failure(tmp_path: Path) -> None:
    empty = tmp_path / "test.xml"
    empty.write_text("<testsuites/>")
    assert count([result("//a:t", "PASSED", empty)])[0]["failed"] == 1


def test_a_target_that_does_not_build_is_a_failure() -> None:
    event = json.dumps({"id": {"targetCompleted": {"label": "//a:lib"}}, "completed": {}})
    built = json.dumps({"id": {"targetCompleted": {"label": "//a:ok"}}, "completed": {"success": True}})
    total, problems = count([event, built])
    assert (total["passed"], total["failed"]) == (0, 1)
    assert problems == ["//a:lib: did not build"]


def test_run_that_failed_without_a_failed_test_counts_as_one(tmp_path: Path) -> None:
    xml = tmp_path / "test.xml"
    xml.write_text('<testsuite><testcase name="a"/></testsuite>')
    total, problems = count_run(37, [result("//a:t", "PASSED", xml)])
    assert (total["passed"], total["failed"]) == (1, 1)
    assert problems == ["bazel ended with status 37"]


def test_run_without_tests_counts_as_a_failure() -> None:
    total, problems = count_run(0, [])
    assert (total["failed"], problems) == (1, ["no test ran"])
