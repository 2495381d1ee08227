"""kubectl for tests: objects in and out, states awaited by watches."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Object = dict[str, Any]

CALL_S = 60.0
"""No single call takes long; waits have limits of their own."""


class Kube:
    """One cluster, by a kubectl that knows it."""

    def __init__(
        self, kubectl: str, context: str, inside: Callable[[Sequence[str]], list[str]] = list
    ) -> None:
        """`inside`: a command so that it runs in the network where kubectl does."""
        self.kubectl = kubectl
        self.context = context
        self.inside = inside

    def call(self, *arguments: str, stdin: str | None = None, timeout_s: float = CALL_S) -> str:
        """Stdout of one kubectl; an AssertionError tells what it said where it failed."""
        done = subprocess.run(
            [self.kubectl, "--context", self.context, *arguments],
            input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def apply(self, *objects: Object) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.call("apply", "--server-side", "-f", "-", stdin=text)

    def get(self, *arguments: str) -> Object:
        answer: Object = json.loads(self.call("get", *arguments, "-o", "json"))
        return answer

    def wait(self, kind: str, name: str, condition: str, namespace: str, timeout_s: float = 60) -> None:
        """`kubectl wait`, which watches."""
        self.call(
            "wait", f"{kind}/{name}", f"--for={condition}", "-n", namespace, f"--timeout={timeout_s:.0f}s",
            timeout_s=timeout_s + 10,
        )  # fmt: skip

    def watch_until(
        self, seen: Callable[[Object], bool], *arguments: str, timeout_s: float = 60
    ) -> Object:
        """Watch what `kubectl get ARGUMENTS` names until one object satisfies `seen`, and return it.

        An AssertionError shows the last object of each name that came.
        """
        last: dict[str, Object] = {}
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            # The API server ends watches now and then, on purpose.
            with self._watch(arguments) as objects:
                while (left := deadline - time.monotonic()) > 0:
                    try:
                        got = objects.get(timeout=left)
                    except queue.Empty:
                        break
                    if got is None:
                        break
                    last[got["metadata"]["name"]] = got
                    if seen(got):
                        return got
        raise AssertionError(f"not within {timeout_s:.0f} s; last seen: {json.dumps(last)[-4000:]}")

    @contextlib.contextmanager
    def _watch(self, arguments: Sequence[str]) -> Iterator[queue.Queue[Object | None]]:
        """What there is, then each change; None at the end of the watch."""
        command = [self.kubectl, "--context", self.context, "get", *arguments, "--watch", "-o", "json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            found: queue.Queue[Object | None] = queue.Queue()
            reader = threading.Thread(target=read_objects, args=(child, found), daemon=True)
            reader.start()
            try:
                yield found
            finally:
                child.terminate()
                reader.join()  # it reads what Popen is about to close

    def exec(self, pod: str, namespace: str, *argv: str, container: str | None = None) -> str:
        chosen = ["-c", container] if container else []
        return self.call("exec", pod, "-n", namespace, *chosen, "--", *argv)


def read_objects(child: subprocess.Popen[str], found: queue.Queue[Object | None]) -> None:
    """kubectl prints one JSON object after the other, each over many lines."""
    assert child.stdout is not None
    decoder = json.JSONDecoder()
    text = ""
    # By the descriptor: a buffered read would wait for more than has come.
    while chunk := os.read(child.stdout.fileno(), 1 << 16):
        text += chunk.decode(errors="replace")
        while text := text.lstrip():
            try:
                got, end = decoder.raw_decode(text)
            except json.JSONDecodeError:
                break
            found.put(got)
            text = text[end:]
    found.put(None)
