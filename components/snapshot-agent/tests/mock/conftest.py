from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from mock_machine import MockMachine


@pytest_asyncio.fixture
async def machine(tmp_path: Path) -> AsyncIterator[MockMachine]:
    machine = MockMachine(tmp_path / "m")
    yield machine
    await machine.close()
