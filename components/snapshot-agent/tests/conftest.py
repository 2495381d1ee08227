from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node_under_test import GPU, GPU1, FakeNode


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., FakeNode]]:
    """Makes FakeNodes with groups g (first GPU) and h (second), and quick settings."""
    made: list[FakeNode] = []

    def make(**settings: Any) -> FakeNode:
        settings.setdefault("groups", {"g": [GPU], "h": [GPU1]})
        settings.setdefault("backoff_s", 0.005)
        settings.setdefault("restore_margin_bytes", 0)
        node = FakeNode(tmp_path / f"node{len(made)}", **settings)
        made.append(node)
        return node

    yield make
    for node in made:
        node.targets.close()


@pytest.fixture
def node(make_node: Callable[..., FakeNode]) -> FakeNode:
    return make_node()
