"""The whole path: one job, one group, one GPU, through all processes; then two jobs that never fit together."""

from __future__ import annotations

import threading
from pathlib import Path

from machine import Machine

MIB = 1 << 20


def test_one_job_holds_works_and_yields(tmp_path: Path) -> None:
    with Machine(tmp_path) as machine:
        client = machine.client("a")
        got = client.acquire(timeout_sec=10)
        assert got.success
        process = machine.process("a")
        written = process.call("alloc", "weights", 20 * MIB, 1)
        process.call("busy", 10_000)
        assert client.release().snapshot_deferred
        assert client.acquire(timeout_sec=10).success
        assert process.call("digest", "weights") == written
        client.release()


def test_two_jobs_that_do_not_fit_together_take_turns_and_keep_their_contents(tmp_path: Path) -> None:
    turns = 5
    with Machine(tmp_path) as machine:
        problems: list[str] = []

        def train(job: str, seed: int) -> None:
            client = machine.client(job)
            process = None
            for turn in range(turns):
                with client.on_accelerators(timeout_sec=30):
                    if process is None:
                        process = machine.process(job)
                        written = process.call("alloc", "weights", 20 * MIB, seed)
                    process.call("busy", 5_000)
                    if process.call("digest", "weights") != written:
                        problems.append(f"{job} turn {turn}: contents changed")

        threads = [threading.Thread(target=train, args=(job, seed)) for seed, job in enumerate("ab")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        assert not problems
        assert machine.status().group.handoffs_total >= 2 * turns - 2
