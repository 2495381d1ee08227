"""The demo's last words on the terminal: a table, the proof, and what this does and does not show."""

import textwrap

from timeslice_demo.measure import VOID_ABOVE, percentile
from timeslice_demo.outcome import Outcome, mean_active_share
from timeslice_demo.recorded import Pool, recorded_run

HONESTY = (
    "The GPUs are simulated: this shows scheduling and data integrity, not swap speed. Phase and swap times are"
    " those of a recorded"
    " run on two H100, scaled; the recording has no weight sync, for which 10 s (before scaling) is taken."
    " Swaps are strict here"
    " (save, then restore); the recorded run overlapped them."
)


def table(outcome: Outcome) -> str:
    """Figures of both runs side by side, and the proof below."""
    return "\n".join([_figures(outcome), "", *_schedule(outcome), "", *_proof(outcome), "", _wrapped(HONESTY)])


def _figures(outcome: Outcome) -> str:
    solo, both = outcome.solo, outcome.timesliced
    names = list(solo.histories)
    rows = [("", "one after the other", "taking turns", "")]
    ratio = f"{outcome.makespan_ratio:.3f} of one after the other"
    rows.append((f"wall time of {len(names)} jobs", f"{solo.wall_s:.2f} s", f"{both.wall_s:.2f} s", ratio))
    for title, field in (("held", "held_share"), ("active", "active_share"), ("utilisation", "mean_utilization")):
        for pool in Pool:
            values = (getattr(pools[pool], field) for pools in (outcome.solo_pools, outcome.timesliced_pools))
            alone, together = values
            rows.append((f"{title}, {pool} pool", f"{alone:6.1%}", f"{together:6.1%}", ""))
    alone, together = mean_active_share(outcome.solo_pools), mean_active_share(outcome.timesliced_pools)
    recorded = recorded_run()["outcome"]
    rows.append(
        (
            "active, mean of both pools",
            f"{alone:6.1%}",
            f"{together:6.1%}",
            f"recorded on real GPUs: {recorded['active_share_solo']:.1%} and {recorded['active_share_timesliced']:.1%}",
        )
    )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows
    ]
    rule = "  " + "-" * (sum(widths) + 4)
    notes = (
        f"  held: share of time with a lease and no switch (alone: a phase had the pool). active: share of NVML samples"
        f" above 0,\n  one every {outcome.settings['sample_period_s'] * 1000:.0f} ms."
        " utilisation: mean of NVML's figure."
    )
    return "\n".join([lines[0], rule, *lines[1:], rule, notes])


def _schedule(outcome: Outcome) -> list[str]:
    overhead = outcome.overhead_ms
    lines = [
        f"  handoffs             {len(outcome.handoffs)}; beyond the driver's own time each took"
        f" {percentile(overhead, 0.5):.1f} ms (p50), {percentile(overhead, 0.99):.1f} ms (p99)"
    ]
    for pool in Pool:
        times, wanted = outcome.swaps[pool], outcome.plan.swaps[pool]
        lines.append(
            f"  {'swap, ' + pool + ' pool':<20} save {times.save_s * 1000:.0f} ms x {times.saves}, restore"
            f" {times.restore_s * 1000:.0f} ms x {times.restores} (medians; planned"
            f" {wanted.save_s * 1000:.0f} and {wanted.restore_s * 1000:.0f} ms)"
        )
    lines.append(
        f"  against the bound    {outcome.efficiency:.3f}: {outcome.bound.makespan_s:.2f} s is the makespan of the same"
        " policy with the solo run's\n                       phases and the planned swaps and no overhead, simulated"
        " over the production core"
    )
    load = max(outcome.busiest_load_s.values())
    lines.append(
        f"  busiest pool         has {load:.2f} s of work, {load / outcome.bound.makespan_s:.3f} of that"
        " (first come first served leaves gaps)"
    )
    if outcome.slow_swaps:
        lines.append(
            f"  NOTE: swaps of {', '.join(outcome.slow_swaps)} took longer than planned, for copying is slower at this"
            " speed; a smaller --scale leaves more time."
        )
    if outcome.verdict.locks_during_lease:
        lines.append(f"  NOTE: a job was locked during its own lease {outcome.verdict.locks_during_lease} times.")
    if outcome.is_void:
        lines.append(
            f"  VOID: the phases took {outcome.phase_ratio:.3f} times as long as alone (limit {VOID_ABOVE}):"
            " the machine was too"
            " busy\n        to compare times. The proof below holds all the same."
        )
    else:
        lines.append(f"  phase times          {outcome.phase_ratio:.3f} of those alone (void above {VOID_ABOVE})")
    return lines


def _proof(outcome: Outcome) -> list[str]:
    lines = ["  Nothing changed" if not outcome.failures else "  NOT THE SAME, or not in turn:"]
    for job in outcome.solo.histories:
        curve = " ".join(f"{reward:.3f}" for reward in outcome.timesliced.rewards(job))
        weights = "equal" if outcome.comparison.weights_equal[job] else "DIFFERENT"
        rewards = "equal" if outcome.comparison.rewards_equal[job] else "DIFFERENT"
        lines.append(
            f"    {job}  rewards {rewards} ({curve}; {outcome.timesliced.accuracy(job):.1%} of unseen digits right),"
            f" weights {weights}\n           alone {outcome.solo.weights_sha256(job)}\n"
            f"           turns {outcome.timesliced.weights_sha256(job)}"
        )
    lines.append(
        f"    device time without a lease: {outcome.verdict.device_s_without_lease:g} s of"
        f" {outcome.verdict.device_s:.2f} s in the"
        " devices' own journal (tolerance: none)"
    )
    lines += [f"    FAILED: {failure}" for failure in outcome.failures]
    return lines


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 116, initial_indent="  ", subsequent_indent="  ")
