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

from oci_images.built import BuiltImage, add_choice, built_images, chosen
from timeslice_kind.cache import cache_folder
from timeslice_kind.clusters import Cluster
from timeslice_kind.errors import KindError


def run(program: str, *arguments: str) -> str:
    """What kind prints; raises KindError with all of it if it fails."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KindError(f"kind {' '.join(arguments[:2])} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def kind_for(name: str, program: str | None) -> str:
    """The kind that made the cluster, if that was //tools/kind, else the one named or on PATH.

    Raises:
        KindError: there is none, or no such cluster.
    """
    made_here = Cluster(cache_folder(os.environ) / "labs", name)
    if program is None and made_here.record is not None:
        made_here.existing()
        return made_here.kind
    found = shutil.which(program or "kind")
    if found is None:
        not_here = f"//tools/kind made no cluster {name!r}, and kind is not on PATH"
        what = f"there is no program {program}" if program else not_here
        raise KindError(f"{what}. Install kind, or make a cluster: ./bazelw run //tools/kind:up -- --name {name}")
    if name not in (there := run(found, "get", "clusters").split()):
        raise KindError(
            f"kind knows no cluster {name!r}; it knows: {', '.join(there) or 'none'}."
            f" Make it with: ./bazelw run //tools/kind:up -- --name {name}"
        )
    return found


def main() -> int:
    images = built_images(Path(__file__).parent)
    parser = argparse.ArgumentParser(
        prog="//images:load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--name", default="timeslice", metavar="CLUSTER", help="kind's name for the cluster (default: %(default)s)"
    )
    parser.add_argument("--nodes", metavar="NODE,...", help="only these nodes")
    parser.add_argument("--kind", metavar="PROGRAM", help="kind itself (default: //tools/kind's, else that on PATH)")
    add_choice(parser, images)
    args = parser.parse_intermixed_args()
    try:
        load(args.name, args.nodes, args.kind, chosen(parser, images, args.images))
    except KindError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def load(name: str, nodes: str | None, program: str | None, images: list[BuiltImage]) -> None:
    """Load the images one after the other and say how far it is; raises KindError."""
    kind = kind_for(name, program)
    for image in images:
        print(f"loading {image.ref} ({image.size_mb:.0f} MB) into {name} ...", end=" ", flush=True)
        began = time.monotonic()
        only = ["--nodes", nodes] if nodes else []
        run(kind, "load", "image-archive", str(image.archive.resolve()), "--name", name, *only)
        print(f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
