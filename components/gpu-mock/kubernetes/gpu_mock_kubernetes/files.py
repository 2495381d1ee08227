"""Files that others read at any time: whole, or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Put a file that all may read in place of whatever is there, in one step. Nobody reads the hidden draft."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_text(text)
        draft.chmod(0o644)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def link_whole(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`, in place of whatever link is there, in one step.

    An empty folder is replaced too: the kubelet makes one where a pod mounts a path of the node that is not there yet.
    """
    if link.is_dir() and not link.is_symlink():
        link.rmdir()
    draft = link.with_name(f".{link.name}.{os.getpid()}.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)
