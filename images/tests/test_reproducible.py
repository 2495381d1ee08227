"""The images built a second time, in another folder, locale and time zone: see `built_elsewhere`."""

from __future__ import annotations

from pathlib import Path

import pytest

from image_files import FOLDER, NAMES

ELSEWHERE = Path("images/elsewhere").absolute()


@pytest.mark.parametrize("name", NAMES)
def test_the_second_build_has_the_same_digest(name: str) -> None:
    first, second = FOLDER / f"{name}.digest", ELSEWHERE / f"{name}.digest"
    assert first.resolve() != second.resolve(), "one and the same build"
    assert first.read_text() == second.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_second_build_has_the_same_bill(name: str) -> None:
    assert (FOLDER / f"{name}.spdx.json").read_bytes() == (ELSEWHERE / f"{name}.spdx.json").read_bytes()
