"""How the pods of a job find each other: the workers call at their controller, which has a Service.

As with Ray or torchrun, there is one address to know, the head's, and workers may be Pending for as long as they like.
Who calls must know the job's key: what goes over the connections are pickles, and they obey who is at the other end.
"""

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge

from timeslice_demo.process_id import ProcessId
from timeslice_demo.recorded import Pool

RETRY_S = (0.2, 2.0)
"""First and longest pause between two calls at a controller that is not there yet; nothing tells when it comes."""
CONNECT_S = 3.0
"""For a few seconds DNS may give the address of a Service that was deleted, from which nothing ever comes back."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a worker says of itself."""

    pool: Pool
    group: str
    process: ProcessId


@contextmanager
def open_door(port: int, key: bytes) -> Iterator[Listener]:
    """Where workers call; port 0: any. The block's Listener has the address."""
    with Listener(("", port), backlog=len(Pool), authkey=key) as listener:
        yield listener


def receive(listener: Listener) -> dict[Pool, tuple[Hello, Connection]]:
    """Wait until one worker of each pool has called. Others, and who does not know the key, are turned away."""
    there: dict[Pool, tuple[Hello, Connection]] = {}
    while len(there) < len(Pool):
        try:
            channel = listener.accept()
            hello = channel.recv()
        except (AuthenticationError, EOFError, ConnectionError) as error:
            print(f"somebody called and was not let in: {error or type(error).__name__}", file=sys.stderr, flush=True)
            continue
        if hello.pool in there:
            print(f"a second {hello.pool} called and was sent away", file=sys.stderr, flush=True)
            channel.close()
            continue
        there[hello.pool] = (hello, channel)
    return there


@contextmanager
def call_at(controller: tuple[str, int], key: bytes, hello: Hello) -> Iterator[Connection]:
    """A connection to the controller, which is waited for as long as it takes.

    Raises:
        AuthenticationError: it has another key.
    """
    pause_s, longest_s = RETRY_S
    while True:
        try:
            channel = _connect(controller, key)
            break
        except (ConnectionError, TimeoutError, EOFError, socket.gaierror) as error:
            print(f"{controller[0]} does not answer yet: {error or 'it hung up'}", file=sys.stderr, flush=True)
        time.sleep(pause_s)
        pause_s = min(longest_s, 2 * pause_s)
    with closing(channel):
        channel.send(hello)
        yield channel


def _connect(controller: tuple[str, int], key: bytes) -> Connection:
    """As multiprocessing's Client does, which cannot be told how long to try."""
    with socket.create_connection(controller, CONNECT_S) as connected:
        connected.settimeout(None)
        channel = Connection(connected.detach())
    try:
        answer_challenge(channel, key)
        deliver_challenge(channel, key)
    except BaseException:
        channel.close()
        raise
    return channel
