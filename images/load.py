"""Load the images into all nodes of a kind cluster.

    ./bazelw run //images:load -- --name CLUSTER [IMAGE ...]

Pods then name them localhost/timeslice-orchestrator:VERSION and so on; nothing is pulled. After a change of the code
load again and restart the pods, whose image has the same name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from oci_images.built import add_choice, built_images, chosen

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timeslice/kind"
"""Where tools/kind keeps what it built."""


def find_kind(named: str | None) -> str | None:
    """The program: the one named, else that on PATH, else the newest that tools/kind has built."""
    if named:
        return shutil.which(named)
    if on_path := shutil.which("kind"):
        return on_path
    built = sorted(CACHE.glob("*/**/kind"), key=lambda path: path.stat().st_mtime)
    return next((str(path) for path in reversed(built) if path.is_file() and os.access(path, os.X_OK)), None)


def clusters(kind: str) -> list[str]:
    """The clusters that kind sees; raises CalledProcessError where it sees no engine."""
    told = subprocess.run([kind, "get", "clusters"], capture_output=True, text=True, check=True)
    return told.stdout.split()


def main() -> int:
    here = Path(__file__).parent
    images = built_images(here)
    parser = argparse.ArgumentParser(
        prog="//images:load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--name", default="timeslice", metavar="CLUSTER", help="kind's name for the cluster (default: %(default)s)"
    )
    parser.add_argument("--nodes", metavar="NODE,...", help="only these nodes")
    parser.add_argument("--kind", metavar="PROGRAM", help="kind itself; else that on PATH, else the one of tools/kind")
    add_choice(parser, images)
    args = parser.parse_intermixed_args()
    wanted = chosen(parser, images, args.images)
    kind = find_kind(args.kind)
    if kind is None:
        what = f"there is no program {args.kind}" if args.kind else "kind is neither on PATH nor built by tools/kind"
        print(f"{what}. Install kind, or make a cluster with ./bazelw run //tools/kind:up", file=sys.stderr)
        return 1
    try:
        there = clusters(kind)
    except subprocess.CalledProcessError as error:
        print(f"{kind} get clusters failed:\n{error.stderr}", file=sys.stderr)
        return 1
    if args.name not in there:
        print(
            f"kind knows no cluster {args.name!r}; it knows: {', '.join(there) or 'none'}."
            f" Make it with: ./bazelw run //tools/kind:up -- --name {args.name}",
            file=sys.stderr,
        )
        return 1
    for image in wanted:
        print(f"loading {image.ref} ({image.size_mb:.0f} MB) into {args.name} ...", end=" ", flush=True)
        began = time.monotonic()
        command = [kind, "load", "image-archive", str(image.archive.resolve()), "--name", args.name]
        if args.nodes:
            command += ["--nodes", args.nodes]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"failed\n{done.stdout}{done.stderr}", file=sys.stderr)
            return 1
        print(f"{time.monotonic() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
