"""Fixtures: nodes of mock GPUs, all forked from one warm server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mock_node import ForkServer, MockNode


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def new_node(server: ForkServer) -> Iterator[Callable[..., MockNode]]:
    """Nodes that are removed at the end, if their state is consistent and no call returned an undocumented code."""
    nodes: list[MockNode] = []

    def make(spec: str = "1x1MiB", **environment: str) -> MockNode:
        nodes.append(MockNode(server, spec, environment))
        return nodes[-1]

    yield make
    try:
        for node in nodes:
            node.check()
            assert node.undocumented == []
    finally:
        for node in nodes:
            node.close()


@pytest.fixture
def node(new_node: Callable[..., MockNode]) -> MockNode:
    """One device of 1 MiB."""
    return new_node("1x1MiB")
