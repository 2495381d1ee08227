"""The pictures of the report, as SVG text: what each pool did over time, and how the rewards rose."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from timeslice_demo.ground_truth import NS
from timeslice_demo.nvml_samples import Sample
from timeslice_demo.phases import Phase
from timeslice_demo.recorded import Pool
from timeslice_demo.run_log import RunLog

COLOURS = ("#2b6cb0", "#dd6b20", "#2f855a", "#805ad5", "#b83280", "#718096")
"""One per job, in order; told apart by people who see no red or green, too."""

WIDTH = 1000.0
LEFT = 86.0
RIGHT = 12.0
TOP = 20.0
LANE = 38.0
CURVE = 26.0
ROW = LANE + CURVE + 16
DOES = {Pool.SAMPLER: "generates", Pool.TRAINER: "trains"}
SHOWN = {Phase.GENERATE: "generate", Phase.TRAIN: "train", Phase.SYNC: "weight sync"}


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Where a moment of a run lies in its picture: the segments are joined, gaps left out, and `longest_s` fits."""

    segments: tuple[tuple[int, int], ...]
    longest_s: float

    @property
    def length_s(self) -> float:
        return sum(end - begin for begin, end in self.segments) / NS

    def x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / self.longest_s

    def span(self, begin_ns: int, end_ns: int) -> tuple[float, float] | None:
        """Left edge and width of what lies in a segment; None if nothing does."""
        passed_ns = 0
        for first, last in self.segments:
            if begin_ns < last and end_ns > first:
                begin = passed_ns + max(begin_ns, first) - first
                end = passed_ns + min(end_ns, last) - first
                return self.x(begin / NS), self.x(end / NS) - self.x(begin / NS)
            passed_ns += last - first
        return None


def timeline(run: RunLog, ordinals: Mapping[Pool, int], longest_s: float) -> str:
    """The whole run: for each pool who worked on it, swaps, idle time, and NVML's utilisation below.

    Args:
        longest_s: the longest time of all pictures, so that they have one scale.
    """
    axis = TimeAxis(run.segments, longest_s)
    end = axis.x(axis.length_s)
    side = 'text-anchor="end" dx="-6"' if end > WIDTH - 110 else 'dx="6"'
    bottom = TOP + 2 * ROW - 6
    end_mark = (
        f'<line x1="{end:.1f}" x2="{end:.1f}" y1="2" y2="{bottom:.1f}" class="end"/>'
        f'<text x="{end:.1f}" y="12" {side} class="end">{run.wall_s:.1f} s: all done</text>'
    )
    return _picture(run, ordinals, axis, end_mark)


def closer_look(run: RunLog, ordinals: Mapping[Pool, int]) -> str:
    """The middle swap of the sampler pool with what happens around it; empty if there was none."""
    swaps = [
        line
        for line in run.journal
        if line.kind == "checkpoint" and line.device == ordinals[Pool.SAMPLER] and line.end_ns
    ]
    if not swaps:
        return ""
    swap = swaps[len(swaps) // 2]
    length_ns = (swap.end_ns or 0) - swap.begin_ns
    segment = (swap.begin_ns - 3 * length_ns, swap.begin_ns + 6 * length_ns)
    return _picture(run, ordinals, TimeAxis((segment,), 9 * length_ns / NS), "")


def _picture(run: RunLog, ordinals: Mapping[Pool, int], axis: TimeAxis, mark: str) -> str:
    colours = dict(zip(run.histories, COLOURS * 2, strict=False))
    lanes = [_lane(run, pool, ordinals[pool], axis, colours, TOP + ROW * number) for number, pool in enumerate(Pool)]
    bottom = TOP + ROW * len(lanes)
    return _svg(WIDTH, bottom + 22, [*lanes, mark, _time_marks(axis, bottom)])


def rewards(solo: RunLog, timesliced: RunLog) -> str:
    """Mean reward per step: a broad line for the job alone, dots for the job that takes turns."""
    width, height, left, bottom = 560.0, 240.0, 44.0, 30.0
    steps = max(len(solo.rewards(job)) for job in solo.histories)

    def x(step: int) -> float:
        return left + 14 + (width - left - 110) * (step / max(1, steps - 1))

    def y(reward: float) -> float:
        return 10 + (height - 10 - bottom) * (1 - reward)

    parts = []
    for mark in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line x1="{left}" x2="{width - 84}" y1="{y(mark):.1f}" y2="{y(mark):.1f}" class="grid"/>'
            f'<text x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end" class="mark">{mark:g}</text>'
        )
    parts.append(
        f'<line x1="{left}" x2="{width - 84}" y1="{y(0.1):.1f}" y2="{y(0.1):.1f}" class="guess"/>'
        f'<text x="{width - 80}" y="{y(0.1) + 4:.1f}" class="mark">guessing</text>'
    )
    for step in range(steps):
        parts.append(f'<text x="{x(step):.1f}" y="{height - 12}" text-anchor="middle" class="mark">{step + 1}</text>')
    parts.append(f'<text x="{left}" y="{height - 12}" text-anchor="end" class="mark">step</text>')
    ends: list[float] = []
    for colour, job in zip(COLOURS * 2, solo.histories, strict=False):
        points = " ".join(f"{x(step):.1f},{y(reward):.1f}" for step, reward in enumerate(solo.rewards(job)))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="9" stroke-opacity=".28"/>'
        )
        for step, reward in enumerate(timesliced.rewards(job)):
            parts.append(
                f'<circle cx="{x(step):.1f}" cy="{y(reward):.1f}" r="4" fill="{colour}"><title>{escape(job)},'
                f" step {step + 1}:"
                f" {reward:.4f}</title></circle>"
            )
        at = y(timesliced.rewards(job)[-1]) + 4
        while any(abs(at - other) < 14 for other in ends):
            at += 14
        ends.append(at)
        parts.append(f'<text x="{width - 80}" y="{at:.1f}" fill="{colour}" class="name">{escape(job)}</text>')
    return _svg(width, height, parts, "chart")


def legend(jobs: Sequence[str]) -> str:
    """The meaning of the colours, as HTML."""
    items = [
        f'<span><i style="background:{colour}"></i>{escape(job)} works; the number is its step</span>'
        for colour, job in zip(COLOURS * 2, jobs, strict=False)
    ]
    items += [
        '<span><i class="waits"></i>pale: the job holds the pool and waits for the other one</span>',
        '<span><i class="save"></i>swap: memory is saved</span>',
        '<span><i class="restore"></i>swap: memory is brought back</span>',
        '<span><i class="idle"></i>nobody: the GPU idles</span>',
        '<span><i class="curve"></i>GPU utilisation (NVML)</span>',
    ]
    return f'<p class="legend">{" ".join(items)}</p>'


def pattern_definitions() -> str:
    """Hatchings that the timelines use; to stand once in the page."""
    return (
        '<svg width="0" height="0" style="position:absolute"><defs>'
        '<pattern id="save" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#2d3748"/><rect width="2" height="6" fill="#718096"/></pattern>'
        '<pattern id="restore" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
        '<rect width="6" height="6" fill="#a0aec0"/><rect width="2" height="6" fill="#edf2f7"/></pattern>'
        "</defs></svg>"
    )


def _lane(run: RunLog, pool: Pool, ordinal: int, axis: TimeAxis, colours: Mapping[str, str], top: float) -> str:
    right = axis.x(axis.length_s)
    parts = [
        f'<text x="0" y="{top + 17:.1f}" class="name">{pool} pool</text><text x="0" y="{top + 32:.1f}"'
        f' class="mark">GPU {ordinal} {DOES[pool]}</text>',
        f'<rect x="{LEFT}" y="{top:.1f}" width="{right - LEFT:.1f}" height="{LANE}" class="idle"/>',
    ]
    if run.group_log:  # alone, a job has nobody to wait for
        for lease in run.leases():
            if lease.pool is pool and (span := axis.span(lease.begin_ns, lease.end_ns)):
                parts.append(_bar(span, top, LANE, colours[lease.job], 0.25, f"{lease.job} holds the {pool} pool"))
    for phase in run.phases():
        if phase.phase is not Phase.SYNC and (phase.phase is Phase.GENERATE) != (pool is Pool.SAMPLER):
            continue
        span = axis.span(phase.begin_ns, phase.end_ns)
        if span is None:
            continue
        seconds = (phase.end_ns - phase.begin_ns) / NS
        what = f"{phase.job}, step {phase.step + 1}: {SHOWN[phase.phase]}, {seconds:.2f} s"
        if phase.phase is Phase.SYNC:
            parts.append(_bar(span, top, LANE, colours[phase.job], 1, what, "sync"))
            continue
        parts.append(_bar(span, top, LANE, colours[phase.job], 1, what))
        label = f"{SHOWN[phase.phase]} {phase.step + 1}"
        if span[1] <= 8 * len(label):
            label = str(phase.step + 1)
        if span[1] > 8 * len(label):
            middle = span[0] + span[1] / 2
            parts.append(f'<text x="{middle:.1f}" y="{top + LANE / 2 + 4:.1f}" class="label">{label}</text>')
    for line in run.journal:
        if line.device != ordinal or line.kind not in ("checkpoint", "restore") or line.end_ns is None:
            continue
        if span := axis.span(line.begin_ns, line.end_ns):
            kind = "save" if line.kind == "checkpoint" else "restore"
            what = f"swap: {kind}, {(line.end_ns - line.begin_ns) / NS * 1000:.0f} ms"
            parts.append(
                f'<rect x="{span[0]:.1f}" y="{top:.1f}" width="{max(span[1], 1):.1f}" height="{LANE}"'
                f' fill="url(#{kind})">'
                f"<title>{what}</title></rect>"
            )
    parts.append(_curve(run, ordinal, axis, top + LANE + 3))
    return "".join(parts)


def _curve(run: RunLog, ordinal: int, axis: TimeAxis, top: float) -> str:
    """Utilisation as a filled curve per segment, drawn in steps: each sample stands for the time before it."""
    paths = []
    for begin, end in axis.segments:
        inside = _samples_around(run, ordinal, begin, end)
        points = []
        for earlier, sample in pairwise(inside):
            span = axis.span(earlier.monotonic_ns, sample.monotonic_ns)
            if span is None:
                continue
            y = top + CURVE * (1 - sample.utilization)
            points.append(f"{span[0]:.1f},{y:.1f} {span[0] + span[1]:.1f},{y:.1f}")
        if points:
            first, last = points[0].split(",")[0], points[-1].split(" ")[1].split(",")[0]
            bottom = top + CURVE
            paths.append(
                f'<polygon points="{first},{bottom:.1f} {" ".join(points)} {last},{bottom:.1f}" class="curve"/>'
            )
    right = axis.x(axis.length_s)
    paths.append(f'<line x1="{LEFT}" x2="{right:.1f}" y1="{top + CURVE:.1f}" y2="{top + CURVE:.1f}" class="grid"/>')
    paths.append(f'<text x="{LEFT - 6}" y="{top + 9:.1f}" text-anchor="end" class="mark">100%</text>')
    paths.append(f'<text x="{LEFT - 6}" y="{top + CURVE + 2:.1f}" text-anchor="end" class="mark">0%</text>')
    return "".join(paths)


def _samples_around(run: RunLog, ordinal: int, begin_ns: int, end_ns: int) -> list[Sample]:
    """The device's samples of that time, with the last one before it and the first one after it."""
    samples = [sample for sample in run.samples if sample.device == ordinal]
    times = [sample.monotonic_ns for sample in samples]
    return samples[max(0, bisect_left(times, begin_ns) - 1) : bisect_right(times, end_ns) + 1]


def _bar(
    span: tuple[float, float], top: float, height: float, colour: str, opacity: float, what: str, extra: str = ""
) -> str:
    return (
        f'<rect x="{span[0]:.1f}" y="{top:.1f}" width="{max(span[1], 0.7):.1f}" height="{height}" fill="{colour}"'
        f' fill-opacity="{opacity}" class="bar {extra}"><title>{escape(what)}</title></rect>'
    )


def _time_marks(axis: TimeAxis, top: float) -> str:
    steps_s = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    step_s = next((step for step in steps_s if axis.longest_s / step <= 14), steps_s[-1])
    parts = []
    for number in range(int(axis.longest_s / step_s * 1.001) + 1):
        x = axis.x(number * step_s)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6:.1f}" y2="{top:.1f}" class="tick"/>'
            f'<text x="{x:.1f}" y="{top + 13:.1f}" text-anchor="middle" class="mark">{number * step_s:g} s</text>'
        )
    return "".join(parts)


def _svg(width: float, height: float, parts: Sequence[str], kind: str = "timeline") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        + "".join(parts)
        + "</svg>"
    )
