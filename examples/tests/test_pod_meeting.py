"""The pods of a job find each other over the network: late ones are waited for, and strangers do not get in."""

import socket
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener

import pytest

from timeslice_demo.pod_meeting import Hello, call_at, open_door, receive
from timeslice_demo.process_id import process_id
from timeslice_demo.recorded import Pool

KEY = b"of this job"
LIMIT_S = 20.0


@pytest.fixture
def listener() -> Iterator[Listener]:
    with open_door(0, KEY) as listener:
        yield listener


def address_of(listener: Listener) -> tuple[str, int]:
    return "127.0.0.1", listener.address[1]


class Caller(threading.Thread):
    """A worker that says hello and keeps what it is sent first."""

    def __init__(self, address: tuple[str, int], pool: Pool, key: bytes = KEY) -> None:
        super().__init__(daemon=True)
        self._address, self._key = address, key
        self.hello = Hello(pool, f"{pool}s", process_id())
        self.sent: object = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with call_at(self._address, self._key, self.hello) as channel:
                self.sent = channel.recv()
        except (AuthenticationError, EOFError, ConnectionError) as error:
            self.error = error

    def ended(self) -> Exception | None:
        self.join(LIMIT_S)
        assert not self.is_alive()
        return self.error


def let_in(listener: Listener, callers: list[Caller]) -> dict[Pool, tuple[Hello, Connection]]:
    """What `receive` gives; each of the callers is then sent its pool's name."""
    there = receive(listener)
    assert {pool: hello for pool, (hello, _) in there.items()} == {one.hello.pool: one.hello for one in callers}
    for pool, (_, channel) in there.items():
        channel.send(pool)
    assert [one.ended() for one in callers] == [None] * len(callers)
    assert [one.sent for one in callers] == [one.hello.pool for one in callers]
    return there


def close(there: dict[Pool, tuple[Hello, Connection]]) -> None:
    for _, channel in there.values():
        channel.close()


def test_both_workers_are_let_in_and_each_is_at_its_own_end(listener: Listener) -> None:
    address = address_of(listener)
    close(let_in(listener, [Caller(address, Pool.TRAINER), Caller(address, Pool.SAMPLER)]))


def test_a_worker_waits_for_a_controller_that_is_not_there_yet(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # a port that refuses until somebody listens
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        callers = [Caller(("127.0.0.1", port), pool) for pool in Pool]
        said = ""
        while said.count("does not answer yet") < 4:
            assert all(one.is_alive() for one in callers)
            said += capfd.readouterr().err
    with open_door(port, KEY) as listener:
        close(let_in(listener, callers))


@pytest.mark.parametrize("stranger", ["knows another key", "hangs up", "says nonsense"])
def test_who_is_no_worker_of_the_job_is_not_let_in(listener: Listener, stranger: str) -> None:
    address = address_of(listener)
    if stranger == "knows another key":
        intruder = Caller(address, Pool.SAMPLER, b"of another job")
    else:
        with socket.create_connection(address) as open_socket:
            if stranger == "says nonsense":
                open_socket.sendall(b"\0\0\0\4GET \0\0\0\4 / \r")
    workers = [Caller(address, pool) for pool in Pool]
    close(let_in(listener, workers))
    if stranger == "knows another key":
        assert isinstance(intruder.ended(), AuthenticationError)


def test_a_second_worker_of_a_pool_is_sent_away(listener: Listener) -> None:
    address = address_of(listener)
    first = Caller(address, Pool.SAMPLER)
    there: dict[Pool, tuple[Hello, Connection]] = {}
    receiving = threading.Thread(target=lambda: there.update(receive(listener)), daemon=True)
    receiving.start()
    # Who is first is not said, only that one of the two is sent away before the trainer has come.
    second = Caller(address, Pool.SAMPLER)
    while first.is_alive() and second.is_alive():
        first.join(0.01)
    trainer = Caller(address, Pool.TRAINER)
    receiving.join(LIMIT_S)
    assert set(there) == set(Pool)
    for _, channel in there.values():
        channel.send("welcome")
    assert sorted(type(one.ended()).__name__ for one in (first, second)) == ["EOFError", "NoneType"]
    assert trainer.ended() is None
    close(there)
