"""The demo whole: real orchestrator, agent, client, jobs and mock. Integrity is asserted here, times never."""

import json
from pathlib import Path

import pytest

from demo_process import DemoProcess, living


def test_quick_run_shows_the_same_results_and_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = DemoProcess("--quick", "--seed", "5", "--report", str(tmp_path))
    demo.read_until("take turns")
    demo.read_until("step 1/3")
    processes = demo.descendants()
    assert len(processes) >= 2 * 3 + 3, "two jobs of three processes, orchestrator, agent, sampling"
    assert len(demo.files()) == 2
    assert demo.finish() == 0, demo.output + demo.errors
    assert demo.errors == ""
    assert living(processes) == set()
    assert demo.files() == []

    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["identical"] is True
    assert written["timesliced"]["device_s_without_lease"] == 0
    assert written["timesliced"]["touches_without_lease"] == 0
    assert written["timesliced"]["locks_during_lease"] == 0
    assert written["timesliced"]["device_s"] > 5
    assert written["timesliced"]["handoffs"] >= 10
    for pool in ("sampler", "trainer"):
        assert 0 < written["timesliced"]["held_share"][pool] <= 1
        assert 0 < written["solo"]["active_share"][pool] <= 1
        assert written["timesliced"]["swap_s"][pool]["saves"] >= 4
    for job in ("job-a", "job-b"):
        hashes = written["weights_sha256"][job]
        assert len(hashes["solo"]) == 64
        assert hashes["solo"] == hashes["timesliced"]
        rewards = written["rewards"][job]["timesliced"]
        assert rewards == written["rewards"][job]["solo"]
        assert rewards[-1] > 0.3 > 0.15 > rewards[0]
    assert written["weights_sha256"]["job-a"] != written["weights_sha256"]["job-b"]
    page = (tmp_path / "index.html").read_text()
    assert "the same results" in page
    for words in (
        "Nothing changed",
        "against the bound",
        "The GPUs are simulated",
        "weights equal",
        "beyond the driver",
    ):
        assert words in demo.output, demo.errors


def test_one_random_byte_in_a_restore_is_found() -> None:
    demo = DemoProcess("--quick", "--inject-corruption")
    assert demo.finish() == 1, demo.output + demo.errors
    assert "NOT THE SAME" in demo.output, demo.errors
    assert "device memory came back changed after it had been saved" in demo.output, demo.errors
    assert demo.files() == []


def test_without_turns_the_same_jobs_run_out_of_device_memory() -> None:
    demo = DemoProcess("--quick", "--without-orchestrator")
    assert demo.finish() == 1, demo.output + demo.errors
    assert "out of device memory" in demo.output, demo.errors
    assert "without turns the second one cannot run" in demo.output, demo.errors
    assert demo.files() == []


@pytest.mark.parametrize("moment", ["one after the other", "take turns"])
def test_ctrl_c_leaves_no_process_and_no_file(moment: str) -> None:
    demo = DemoProcess("--quick")
    demo.read_until(moment)
    demo.read_until("step 1/3")
    processes = demo.descendants()
    assert processes
    assert demo.files()
    demo.interrupt()
    assert demo.finish() == 130, demo.output + demo.errors
    assert living(processes) == set()
    assert demo.files() == []
    assert "interrupted" in demo.errors
    assert "Traceback" not in demo.errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "1"], "--jobs 1 cannot be; give a number from 2"),
        (["--jobs", "99"], "--jobs 99 cannot be"),
        (["--jobs", "many"], "invalid int value: 'many'"),
        (["--seed", "-1"], "--seed -1 cannot be"),
        (["--scale", "0"], "--scale 0 cannot be; give how many times faster"),
        (["--scale", "nan"], "--scale nan cannot be"),
        (["--report", "/proc/nowhere"], "--report /proc/nowhere cannot be written"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_bad_arguments_are_one_line_that_says_what_to_do(arguments: list[str], words: str) -> None:
    demo = DemoProcess(*arguments)
    assert demo.finish() == 2
    assert demo.output == ""
    assert words in demo.errors.splitlines()[-1]
    assert "Traceback" not in demo.errors


def test_without_the_mock_it_says_where_it_is_sought() -> None:
    demo = DemoProcess("--quick", libraries="/nonexistent")
    assert demo.finish() == 2
    assert demo.errors.startswith("demo: ")
    assert len(demo.errors.splitlines()) == 1
    assert "GPU_MOCK_LIB_DIR" in demo.errors
