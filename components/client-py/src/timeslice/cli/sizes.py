"""Sizes of memory, for people."""

from __future__ import annotations

GIB, MIB = 1 << 30, 1 << 20


def size_text(size_bytes: int) -> str:
    """ "79.6 GiB", "20 MiB": whole MiB below one GiB, one decimal above."""
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"
