"""kubectl as a child process: answers as data, failures as DeployError."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timeslice_deploy.errors import BadUsage, DeployError

MAX_ERROR_CHARS = 2000
CALL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How one call ended."""

    status: int
    out: str
    err: str


def find(env: Mapping[str, str], given: str | None, context: str | None) -> str:
    """The kubectl to use: `--kubectl`, $KUBECTL, for a cluster of //tools/kind on podman that cluster's own (it is in a
    network namespace, where no other reaches it), the one on PATH, else the one that //tools/kind has built."""
    for candidate in (given, env.get("KUBECTL")):
        if candidate:
            found = shutil.which(candidate, path=env.get("PATH"))
            if found is None:
                raise BadUsage(f"{candidate!r} is no program; name a kubectl with --kubectl or the variable KUBECTL")
            return found
    found = kind_contexts(env).get(context or "") or shutil.which("kubectl", path=env.get("PATH")) or built_by_kind(env)
    if found is None:
        raise BadUsage(
            "no kubectl on PATH: install it (https://kubernetes.io/docs/tasks/tools), name one with --kubectl, or let"
            " `./bazelw run //tools/kind:up` build one"
        )
    return found


def kind_contexts(env: Mapping[str, str]) -> dict[str, str]:
    """Of the clusters that //tools/kind has up on podman: each one's context, and the kubectl that reaches it."""
    labs = _kind_cache(env) / "labs"
    return {
        f"kind-{kubectl.parent.parent.name}": str(kubectl)
        for kubectl in labs.glob("*/bin/kubectl")
        if os.access(kubectl, os.X_OK)
    }


def built_by_kind(env: Mapping[str, str]) -> str | None:
    """The newest that //tools/kind keeps in its cache."""
    found = [
        (kubectl.stat().st_mtime, str(kubectl))
        for kubectl in _kind_cache(env).glob("*/bin/kubectl")
        if os.access(kubectl, os.X_OK)
    ]
    return max(found)[1] if found else None


def _kind_cache(env: Mapping[str, str]) -> Path:
    cache = env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME", "/"), ".cache")
    return Path(cache, "timeslice", "kind")


class Kubectl:
    """One context of one kubeconfig. Every call names it: what the current context is does not matter."""

    def __init__(self, program: str, context: str, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._program = program
        self.context = context
        self._timeout_s = timeout_s

    async def call(self, *arguments: str, stdin: str | None = None, wait_s: float = 0.0) -> Answer:
        """Run to the end. `wait_s`: how long it may wait for something by itself (its own --timeout).

        Raises: DeployError if that takes longer than the limit; the child is killed then.
        """
        return await _call([self._program, "--context", self.context, *arguments], self._timeout_s + wait_s, stdin)

    async def run(self, *arguments: str, stdin: str | None = None) -> str:
        """What it printed. Raises: DeployError if it failed."""
        answer = await self.call(*arguments, stdin=stdin)
        if answer.status != 0:
            raise self.failure(answer, arguments)
        return answer.out

    async def get(self, *arguments: str) -> Any:
        """`get -o json` as data; None if it is not there."""
        answer = await self.call("get", *arguments, "-o", "json")
        if answer.status != 0:
            # A kubectl that still remembers a kind that is gone is told NotFound too.
            if "(NotFound)" in answer.err or "the server doesn't have a resource type" in answer.err:
                return None
            raise self.failure(answer, ("get", *arguments))
        return json.loads(answer.out)

    async def items(self, *arguments: str) -> list[Any]:
        """The objects of a list; none if there is no such kind."""
        found = await self.get(*arguments)
        return [] if found is None else list(found["items"])

    def failure(self, answer: Answer, arguments: Sequence[str]) -> DeployError:
        """One error for all the ways in which kubectl complains."""
        said = answer.err.strip() or answer.out.strip() or f"status {answer.status}"
        for sign in ("connection refused", "no such host", "i/o timeout", "was refused", "no route to host"):
            if sign in said:
                last = said.splitlines()[-1]
                return DeployError(
                    f"the API server of context {self.context!r} does not answer ({last}); is the cluster up, and does"
                    " `kubectl config view` show the right address?"
                )
        if "(Forbidden)" in said or "Unauthorized" in said:
            return DeployError(f"context {self.context!r} may not `kubectl {' '.join(arguments[:3])}`: {_cut(said)}")
        return DeployError(f"kubectl {' '.join(arguments[:3])} failed: {_cut(said)}")

    async def watch(self, *arguments: str) -> AsyncIterator[tuple[str, Any]]:
        """(ADDED, MODIFIED or DELETED, object) for what is there and then for each change, until the iterator is closed
        or the server ends the watch. Raises: DeployError if it could not be begun."""
        command = [self._program, "--context", self.context, "get", *arguments, "--watch", "--output-watch-events"]
        child = await asyncio.create_subprocess_exec(
            *command,
            "-o",
            "json",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        complaints = asyncio.create_task(child.stderr.read(), name="stderr of kubectl")
        decoder = json.JSONDecoder()
        text = ""
        try:
            while chunk := await child.stdout.read(1 << 16):
                text += chunk.decode("utf-8", "surrogateescape")
                while text := text.lstrip():
                    try:
                        event, end = decoder.raw_decode(text)
                    except json.JSONDecodeError:
                        break  # the rest of it is still to come
                    text = text[end:]
                    yield event["type"], event["object"]
            status = await child.wait()
            if status != 0:
                said = (await complaints).decode(errors="replace")
                raise self.failure(Answer(status, "", said), ("get", *arguments))
        finally:
            complaints.cancel()
            await _end(child)


async def contexts(program: str) -> list[str]:
    """All that the kubeconfig has."""
    answer = await _call([program, "config", "get-contexts", "-o", "name"], CALL_TIMEOUT_S, None)
    if answer.status != 0:
        raise DeployError(f"kubectl cannot read the kubeconfig: {_cut(answer.err.strip())}")
    return answer.out.split()


async def build(program: str, folder: str) -> str:
    """`kubectl kustomize`. Raises: DeployError."""
    answer = await _call([program, "kustomize", folder], CALL_TIMEOUT_S, None)
    if answer.status != 0:
        raise DeployError(f"kubectl kustomize {folder} failed: {_cut(answer.err.strip())}")
    return answer.out


async def _call(command: Sequence[str], timeout_s: float, stdin: str | None) -> Answer:
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await child.communicate(None if stdin is None else stdin.encode())
    except TimeoutError:
        raise DeployError(
            f"no answer within {timeout_s:g} s from `{' '.join(command[:6])} ...`; is the cluster up?"
        ) from None
    finally:
        await _end(child)
    assert child.returncode is not None
    return Answer(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ERROR_CHARS else text[:MAX_ERROR_CHARS] + " ..."
