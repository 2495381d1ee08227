"""Count the test cases of Bazel runs and print `N passed, N failed` over all of them as the last line.

The counts come from the test.xml files that each run's build events name, so that a target without one (it crashed,
timed out, or did not build) counts as one failure, never as nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def count(lines: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Cases by outcome, and a line for each target that failed or never ran."""
    total: Counter[str] = Counter()
    problems: list[str] = []
    for line in lines:
        event = json.loads(line)
        event_id = event["id"]
        if "testResult" in event_id:
            cases, problem = judge(event.get("testResult", {}))
            label = event_id["testResult"]["label"]
        elif "targetCompleted" in event_id and not event.get("completed", {}).get("success"):
            cases, problem = Counter(failed=1), "did not build"
            label = event_id["targetCompleted"]["label"]
        else:
            continue
        total += cases
        if problem:
            problems.append(f"{label}: {problem}")
    return total, problems


def judge(result: dict[str, Any]) -> tuple[Counter[str], str]:
    """The cases of one test target, and what is wrong with it, if anything."""
    status = result.get("status", "no result")
    cases: Counter[str] = Counter()
    for output in result.get("testActionOutput", []):
        if output["name"] == "test.xml":
            with contextlib.suppress(OSError, ElementTree.ParseError):
                cases = cases_in(Path(urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)))
    if status not in ("PASSED", "FLAKY"):
        cases["failed"] = cases["failed"] or 1
        return cases, status
    if not cases["passed"]:
        cases["failed"] += 1
        return cases, "passed, but reported no test case that did"
    return cases, ""


def cases_in(xml: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(xml).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            counts["failed"] += 1
        elif "skipped" in kinds:
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def count_run(status: int, lines: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """One run, that ended with `status`: one that ran nothing, or failed without a failed test, is a failure too."""
    total, problems = count(lines)
    if status and not total["failed"]:
        problems.append(f"bazel ended with status {status}")
        total["failed"] += 1
    if not total["passed"] and not total["failed"]:
        problems.append("no test ran")
        total["failed"] += 1
    return total, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="STATUS:FILE",
        help="what bazel test ended with, and the file written by --build_event_json_file",
    )
    args = parser.parse_args()
    total: Counter[str] = Counter()
    problems: list[str] = []
    for run in args.runs:
        status, _, file = run.partition(":")
        with Path(file).open() as lines:
            counted, found = count_run(int(status), lines)
        total += counted
        problems += found
    for problem in problems:
        print(f"FAILED {problem}")
    skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
    print(f"{total['passed']} passed, {total['failed']} failed{skipped}")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
