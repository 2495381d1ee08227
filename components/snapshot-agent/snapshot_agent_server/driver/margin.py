"""The free memory that a restore must leave on a device."""

from __future__ import annotations

DEFAULT_MARGIN_BYTES = 512 << 20


def margin_bytes(margin: int | None, total: int) -> int:
    """`margin` None: by the size of the device, which is `total` bytes."""
    return min(DEFAULT_MARGIN_BYTES, total // 16) if margin is None else margin
