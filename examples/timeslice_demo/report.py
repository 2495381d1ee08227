"""The report: summary.json, and one page that explains the run to somebody who has read no code. No file but the page
is needed.
"""

import json
from html import escape
from pathlib import Path

from timeslice_demo.charts import closer_look, legend, pattern_definitions, rewards, timeline
from timeslice_demo.measure import VOID_ABOVE, percentile
from timeslice_demo.outcome import Outcome, mean_active_share, summary
from timeslice_demo.recorded import Pool, recorded_run
from timeslice_demo.runs import ORDINALS

NUMBERS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six"}

STYLE = """ :root{color-scheme:light} body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica
Neue",Arial,sans-serif;color:#1a202c;background:#fff;margin:0} main{max-width:1080px;margin:0 auto;padding:32px 24px
64px} h1{font-size:28px;line-height:1.25;margin:0 0 8px} h2{font-size:20px;margin:40px 0 6px}
h3{font-size:16px;margin:20px 0 4px} p{margin:6px 0 10px;max-width:78ch} .lead{font-size:18px;color:#2d3748}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(220px,1fr));gap:14px;margin:22px 0} .card{border:1px
solid #e2e8f0;border-radius:8px;padding:14px 16px} .card b{display:block;font-size:26px;line-height:1.2}
.card>span{color:#4a5568;font-size:14px} .good{color:#276749}.bad{color:#c53030} .banner{border-left:5px solid
#c53030;background:#fff5f5;padding:10px 14px;margin:14px 0} svg.timeline{width:100%;height:auto;display:block}
svg.chart{width:100%;max-width:620px;height:auto;display:block} svg text{font-family:inherit}
.name{font-size:13px;font-weight:600} .mark{font-size:11px;fill:#718096}
.label{font-size:11px;fill:#fff;text-anchor:middle;pointer-events:none}
.idle{fill:#f1f5f9;background:#f1f5f9;border:1px solid
#cbd5e0}.bar{stroke:#fff;stroke-width:.6}.sync{filter:brightness(.62)}
.grid{stroke:#e2e8f0}.tick{stroke:#a0aec0}.guess{stroke:#a0aec0;stroke-dasharray:4 4}
line.end{stroke:#1a202c;stroke-dasharray:3 3} text.end{font-size:12px;font-weight:600}
polygon.curve{fill:#90a4be;fill-opacity:.75} .legend{font-size:13px;color:#4a5568;max-width:none} .legend
span{white-space:nowrap;margin-right:16px;display:inline-block} .legend
i{display:inline-block;width:14px;height:14px;border-radius:2px;vertical-align:-2px;margin-right:6px;box-sizing:border-box}
.legend i.waits{background:#cbd9ea}.legend i.curve{background:#90a4be;height:8px;vertical-align:0} .legend
i.save{background:repeating-linear-gradient(45deg,#2d3748 0 4px,#718096 4px 6px)} .legend
i.restore{background:repeating-linear-gradient(-45deg,#a0aec0 0 4px,#edf2f7 4px 6px)}
table{border-collapse:collapse;font-size:15px;margin:10px 0} th,td{padding:5px 14px 5px
0;text-align:right;border-bottom:1px solid #e2e8f0} th:first-child,td:first-child{text-align:left}
th{font-weight:600;color:#4a5568} td.note{color:#718096;text-align:left;font-size:13px} code{font:12px
ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;word-break:break-all}
.both{display:flex;flex-wrap:wrap;gap:32px;align-items:flex-start}.both>*{flex:1 1 420px}
footer{margin-top:40px;border-top:1px solid #e2e8f0;padding-top:14px;color:#4a5568;font-size:14px} footer
p{max-width:none}
"""


def write_report(outcome: Outcome, folder: Path) -> Path:
    """Write summary.json and index.html into the folder (made if it is missing); return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(summary(outcome), indent=2) + "\n", encoding="utf-8")
    page = folder / "index.html"
    page.write_text(html_page(outcome), encoding="utf-8")
    return page


def html_page(outcome: Outcome) -> str:
    jobs = list(outcome.solo.histories)
    many = NUMBERS.get(len(jobs), str(len(jobs)))
    same = outcome.comparison.identical
    title = f"{many} training jobs, two GPUs: the same work in {outcome.makespan_ratio:.0%} of the time"
    sections = [
        f"<h1>{title}{', the same results' if same else ''}</h1>",
        '<p class="lead">A reinforcement-learning job first <b>generates</b> answers on one GPU, then'
        " <b>trains</b> on another. While it"
        " does the one, the other GPU has nothing to do. When several jobs take turns on the same GPUs, one"
        " trains while another"
        " generates.</p>",
        _banners(outcome),
        _cards(outcome),
        pattern_definitions(),
        _timelines(outcome),
        _learning(outcome),
        _table(outcome),
        _proof(outcome),
        _footer(outcome),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def _banners(outcome: Outcome) -> str:
    banners = [f"<b>Failed.</b> {escape(failure)}" for failure in outcome.failures]
    if outcome.is_void:
        banners.append(
            f"<b>Void.</b> The phases took {outcome.phase_ratio:.3f} times as long as alone (limit"
            f" {VOID_ABOVE}): the machine was"
            " too busy to compare times. Whether the results are the same does not depend on it."
        )
    return "".join(f'<div class="banner">{text}</div>' for text in banners)


def _cards(outcome: Outcome) -> str:
    alone, together = mean_active_share(outcome.solo_pools), mean_active_share(outcome.timesliced_pools)
    same = outcome.comparison.identical
    cards = [
        (
            f"{outcome.solo.wall_s:.1f} s &rarr; {outcome.timesliced.wall_s:.1f} s",
            f"until all jobs are done: {outcome.makespan_ratio:.2f} of one after the other",
        ),
        (f"{alone:.0%} &rarr; {together:.0%}", "of the time the GPUs work (mean of both)"),
        (
            '<span class="good" style="font-size:inherit">bit for bit</span>'
            if same
            else '<span class="bad" style="font-size:inherit">different</span>',
            "final weights and rewards against each job alone",
        ),
        (
            f"{percentile(outcome.overhead_ms, 0.5):.0f} ms",
            f"is what a handoff takes besides the GPU's own save and restore (median of {len(outcome.handoffs)})",
        ),
    ]
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{big}</b><span>{small}</span></div>' for big, small in cards)
        + "</div>"
    )


def _timelines(outcome: Outcome) -> str:
    longest_s = max(outcome.solo.wall_s, outcome.timesliced.wall_s)
    return (
        "<h2>Who had which GPU when</h2>"
        "<p>A step of a job is generate, train, and a short weight sync (dark) that needs both GPUs. One job's memory"
        " at a time is on a GPU: when another job's turn comes, the memory of the one that leaves is saved to"
        " the host, then that of the one that comes is brought back. Point at a bar to see what it is.</p>"
        + legend(list(outcome.solo.histories))
        + "<h3>One job after the other: half of each GPU's time is lost</h3>"
        + timeline(outcome.solo, ORDINALS, longest_s)
        + "<h3>Taking turns: while one job trains, another generates (same scale)</h3>"
        + timeline(outcome.timesliced, ORDINALS, longest_s)
        + "<h3>A closer look at one change of turns</h3>"
        + closer_look(outcome.timesliced, ORDINALS)
    )


def _learning(outcome: Outcome) -> str:
    rows = "".join(
        f"<tr><td>{escape(job)}</td><td>{outcome.timesliced.rewards(job)[0]:.3f}</td><td>{outcome.timesliced.rewards(job)[-1]:.3f}</td>"
        f"<td>{outcome.timesliced.accuracy(job):.1%}</td></tr>"
        for job in outcome.solo.histories
    )
    return (
        "<h2>What the jobs learn</h2><div class='both'><div>"
        + rewards(outcome.solo, outcome.timesliced)
        + "</div><div><p>Each job learns to read handwritten digits with GRPO: it answers every picture several"
        " times, is told only"
        " whether an answer was right, and shifts towards answers that did better than their siblings.</p>"
        "<p>Broad line: the job alone. Dots: the same job taking turns. They lie on each other.</p>"
        "<table><tr><th>job</th><th>first reward</th><th>last reward</th><th>unseen digits right</th></tr>"
        + rows
        + "</table></div></div>"
    )


def _table(outcome: Outcome) -> str:
    recorded = recorded_run()["outcome"]
    rows = [
        (
            "Wall time",
            f"{outcome.solo.wall_s:.2f} s",
            f"{outcome.timesliced.wall_s:.2f} s",
            f"{outcome.makespan_ratio:.3f} of one after the other; recorded on real GPUs:"
            f" {recorded['makespan_over_solo']:g}",
        )
    ]
    period_ms = outcome.settings["sample_period_s"] * 1000
    kinds = (
        ("Held share", "held_share", "share of time with a lease and no switch (alone: a phase had the pool)"),
        ("Active share", "active_share", f"share of NVML samples above 0, one every {period_ms:.0f} ms"),
        ("Mean utilisation", "mean_utilization", "mean of NVML's figure"),
    )
    for title, field, note in kinds:
        for pool in Pool:
            alone = getattr(outcome.solo_pools[pool], field)
            together = getattr(outcome.timesliced_pools[pool], field)
            rows.append((f"{title}, {pool} pool", f"{alone:.1%}", f"{together:.1%}", note))
            note = ""
    alone, together = mean_active_share(outcome.solo_pools), mean_active_share(outcome.timesliced_pools)
    rows.append(
        (
            "Active share, mean",
            f"{alone:.1%}",
            f"{together:.1%}",
            f"recorded on real GPUs: {recorded['active_share_solo']:.1%} and {recorded['active_share_timesliced']:.1%},"
            f" one sample every {recorded['sample_period_s']} s",
        )
    )
    overhead = outcome.overhead_ms
    more = [
        ("Handoffs", f"{len(outcome.handoffs)}", ""),
        (
            "Overhead of a handoff",
            f"{percentile(overhead, 0.5):.1f} ms (p50), {percentile(overhead, 0.99):.1f} ms (p99)",
            "from the holder's yield (or the next one's wish, if later) to the next acquire, less save and restore",
        ),
    ]
    for pool in Pool:
        times = outcome.swaps[pool]
        more.append(
            (
                f"Swap, {pool} pool",
                f"{times.save_s * 1000:.0f} + {times.restore_s * 1000:.0f} ms",
                f"medians of {times.saves} saves and {times.restores} restores",
            )
        )
    load = max(outcome.busiest_load_s.values())
    more += [
        (
            "Against the bound",
            f"{outcome.efficiency:.3f}",
            f"{outcome.bound.makespan_s:.2f} s: the same policy, phases and swaps without overhead, simulated over"
            " the production core",
        ),
        ("Work of the busiest pool", f"{load:.2f} s", f"{load / outcome.bound.makespan_s:.3f} of the bound"),
        ("Phase times", f"{outcome.phase_ratio:.3f}", f"of those alone; above {VOID_ABOVE} the run would be void"),
    ]
    return (
        "<h2>Figures</h2><table><tr><th></th><th>one after the other</th><th>taking turns</th><th></th></tr>"
        + "".join(f'<tr><td>{a}</td><td>{b}</td><td>{c}</td><td class="note">{d}</td></tr>' for a, b, c, d in rows)
        + "</table><table>"
        + "".join(f'<tr><td>{a}</td><td>{b}</td><td class="note">{c}</td></tr>' for a, b, c in more)
        + "</table>"
    )


def _proof(outcome: Outcome) -> str:
    rows = []
    for job in outcome.solo.histories:
        equal = outcome.comparison.weights_equal[job] and outcome.comparison.rewards_equal[job]
        mark = '<b class="good">equal</b>' if equal else '<b class="bad">different</b>'
        rows.append(
            f"<tr><td>{escape(job)}</td><td style='text-align:left'><code>{outcome.solo.weights_sha256(job)}</code><br>"
            f"<code>{outcome.timesliced.weights_sha256(job)}</code></td><td>{mark}</td></tr>"
        )
    verdict = outcome.verdict
    return (
        "<h2>Proof that nothing changed</h2>"
        "<p>SHA-256 of each job's final weights, alone (above) and taking turns (below). The rewards of all"
        " steps are compared, too,"
        " and every byte of device memory is checked at the beginning of each phase.</p><table>"
        + "".join(rows)
        + f"</table><p>The devices keep a journal of their own, which says what ran on them when. Held against"
        " the leases it shows"
        f" <b>{verdict.device_s_without_lease:g} s of {verdict.device_s:.1f} s device time without a lease</b>"
        " (tolerance: none), and"
        f" {verdict.touches_without_lease} other uses.</p>"
    )


def _footer(outcome: Outcome) -> str:
    recorded = recorded_run()
    settings = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in outcome.settings.items())
    return (
        "<footer><p><b>What this shows, and what not.</b> The GPUs are simulated: this shows scheduling and"
        " data integrity, not swap speed."
        " The jobs, their data, the orchestrator and the snapshot agent are real.</p>"
        f"<p>The lengths of phases and swaps come from a recorded run ({escape(recorded['run'])}), scaled. Source:"
        f" {escape(recorded['source'])}. {escape(recorded['not_recorded'])} Swaps are"
        " strict here, save and then restore; the recorded run overlapped them.</p>"
        + (f"<p>{escape(outcome.place)}</p>" if outcome.place else "")
        + f"<p>Settings: {settings}.</p></footer>"
    )
