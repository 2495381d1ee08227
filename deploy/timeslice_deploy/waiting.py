"""Wait until what was applied runs: by watches, with a line whenever something changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from timeslice_deploy.errors import DeployError
from timeslice_deploy.kubectl import Kubectl
from timeslice_deploy.manifests import Object, described, workloads
from timeslice_deploy.names import NAMESPACE, PART_OF
from timeslice_deploy.rollout import Seen, is_crashing, progress, troubles

SETTLE_S = 5.0
"""A pod that is not ready for this long is worth a line; most are ready before."""

LOG_LINES = 5
WATCH_AGAIN_S = 1.0

Say = Callable[[str], None]


async def established(kubectl: Kubectl, crds: Sequence[str], timeout_s: float) -> None:
    """Wait until the API server serves these kinds. Raises: DeployError."""
    if crds:
        names = [f"customresourcedefinition/{name}" for name in crds]
        limit = f"--timeout={timeout_s:g}s"
        answer = await kubectl.call("wait", "--for=condition=Established", limit, *names, wait_s=timeout_s)
        if answer.status != 0:
            raise DeployError(f"the CRD is not served: {answer.err.strip()}")


async def running(kubectl: Kubectl, objects: Sequence[Object], timeout_s: float, say: Say) -> None:
    """Wait until all workloads among `objects` run as applied. Raises: DeployError that says which do not, and why."""
    wanted = [described(o) for o in workloads(objects)]
    seen = Seen()
    changed = asyncio.Event()
    watches = [
        asyncio.create_task(_follow(kubectl, kind, selector, seen, changed), name=f"watch {kind}")
        for kind, selector in (
            ("deployments", PART_OF),
            ("daemonsets", PART_OF),
            ("pods", PART_OF),
            ("events", None),
        )
    ]
    board = _Board(wanted, seen, say)
    done = asyncio.create_task(_all_done(board, changed), name="rollout")
    try:
        async with asyncio.timeout(timeout_s):
            finished, _ = await asyncio.wait([done, *watches], return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                task.result()
    except TimeoutError:
        raise await _stuck(kubectl, board, seen, timeout_s) from None
    finally:
        for task in (done, *watches):
            task.cancel()
        await asyncio.wait([done, *watches])


class _Board:
    """What has been said, so that only news is."""

    def __init__(self, wanted: Sequence[str], seen: Seen, say: Say) -> None:
        self._wanted = wanted
        self._seen = seen
        self._say = say
        self._said: dict[str, str] = {}
        self._since: dict[str, float] = {}

    def unfinished(self) -> list[str]:
        """What does not run yet, as "kind/name"."""
        return [name for name in self._wanted if not self._is_done(name)]

    def tell(self, now: float) -> float | None:
        """Say what is new; after how many seconds to look again even if nothing changes, None: no need."""
        for name in self._wanted:
            workload = self._seen.workloads.get(name)
            if workload is not None:
                ready, all_of_them, is_done = progress(workload)
                mark = "ready" if is_done else "..."
                self._once(name, f"{name}: {ready}/{all_of_them} {mark}")
        lines = troubles(self._seen)
        self._since = {line: self._since.get(line, now) for line in lines}
        due = []
        for line, since in self._since.items():
            if now - since >= SETTLE_S:
                self._once(line, f"  {line}")
            else:
                due.append(since + SETTLE_S - now)
        return min(due, default=None)

    def _is_done(self, name: str) -> bool:
        workload = self._seen.workloads.get(name)
        return workload is not None and progress(workload)[2]

    def _once(self, key: str, line: str) -> None:
        if self._said.get(key) != line:
            self._said[key] = line
            self._say(line)


async def _all_done(board: _Board, changed: asyncio.Event) -> None:
    while True:
        changed.clear()
        again_s = board.tell(time.monotonic())
        if not board.unfinished():
            return
        try:
            async with asyncio.timeout(again_s):
                await changed.wait()
        except TimeoutError:
            continue


async def _follow(kubectl: Kubectl, kind: str, selector: str | None, seen: Seen, changed: asyncio.Event) -> None:
    """Keep `seen` as the API server shows it; a watch that ends is begun again, and tells everything anew."""
    arguments = [kind, "--namespace", NAMESPACE, *(["-l", selector] if selector else [])]
    while True:
        async for what, o in kubectl.watch(*arguments):
            _take(kind, what, o, seen)
            changed.set()
        await asyncio.sleep(WATCH_AGAIN_S)  # the server ends watches after a while; not faster than this if it is ill


def _take(kind: str, what: str, o: Any, seen: Seen) -> None:
    name = o["metadata"]["name"]
    if kind == "events":
        about = o.get("involvedObject") or o.get("regarding") or {}
        if o.get("type") == "Warning" and about.get("kind") == "Pod":
            seen.warnings[about["name"]] = f"{o.get('reason', '')}: {o.get('message') or o.get('note', '')}"
        return
    known, key = (seen.pods, name) if kind == "pods" else (seen.workloads, described(o))
    if what == "DELETED":
        known.pop(key, None)
        seen.warnings.pop(name, None)
    else:
        known[key] = o


async def _stuck(kubectl: Kubectl, board: _Board, seen: Seen, timeout_s: float) -> DeployError:
    lines = [f"after {timeout_s:g} s these do not run as they should: {', '.join(board.unfinished())}"]
    for trouble in troubles(seen):
        lines.append(f"  {trouble}")
    for name, pod in sorted(seen.pods.items()):
        if is_crashing(pod) and not pod["metadata"].get("deletionTimestamp"):
            for which in ("--previous=true", "--previous=false"):
                answer = await kubectl.call(
                    "logs", name, "--namespace", NAMESPACE, f"--tail={LOG_LINES}", "--all-containers", which
                )
                if answer.status == 0 and answer.out.strip():
                    lines.append(f"  the last lines of pod {name}:")
                    lines += [f"    {line}" for line in answer.out.strip().splitlines()[-LOG_LINES:]]
                    break
    lines.append(
        f"look at `kubectl --context {kubectl.context} -n {NAMESPACE} describe pods`; apply again when it is mended"
    )
    return DeployError("\n".join(lines))
