"""Push the images to a registry, with skopeo or crane, whichever is there.

    ./bazelw run //images:push -- REGISTRY [IMAGE ...]

REGISTRY is what stands before the images' names, as registry.example/team. Log in first, with the same tool
(skopeo login, crane auth login). What is pushed has the digest that the build wrote down; it is printed at the end, for
manifests that name images by digest.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from oci_images.built import BuiltImage, add_choice, built_images, chosen

INSTALL = """there is neither skopeo nor crane here. Install one of them:
  apt-get install skopeo      (dnf, brew and others have it too)
  go install github.com/google/go-containerregistry/cmd/crane@latest
or load the archives by other means: """


def registry(text: str) -> str:
    """Raises ArgumentTypeError for what cannot stand before an image's name."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: without a scheme, as registry.example/team")
    host, *folders = text.rstrip("/").split("/")
    if not re.fullmatch(r"[A-Za-z0-9.-]+(:\d+)?", host) or not all(re.fullmatch(r"[a-z0-9._-]+", f) for f in folders):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST[:PORT][/FOLDER...] (folders in lower case)")
    return "/".join([host, *folders])


def skopeo(program: str, image: BuiltImage, ref: str, insecure: bool) -> int:
    options = ["--preserve-digests", *(["--dest-tls-verify=false"] if insecure else [])]
    return subprocess.call([program, "copy", *options, f"oci-archive:{image.archive.resolve()}", f"docker://{ref}"])


def crane(program: str, image: BuiltImage, ref: str, insecure: bool) -> int:
    """From an unpacked layout: from an archive crane would write a manifest of its own, with another digest."""
    with tempfile.TemporaryDirectory() as layout:
        with tarfile.open(image.archive) as tar:
            tar.extractall(layout)
        return subprocess.call([program, "push", *(["--insecure"] if insecure else []), layout, ref])


def main() -> int:
    images = built_images(Path(__file__).parent)
    parser = argparse.ArgumentParser(
        prog="//images:push", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("registry", type=registry, metavar="REGISTRY", help="HOST[:PORT][/FOLDER...]")
    parser.add_argument("--tag", metavar="TAG", help="instead of the version")
    parser.add_argument("--insecure", action="store_true", help="the registry speaks plain HTTP or has no known CA")
    add_choice(parser, images)
    args = parser.parse_intermixed_args()
    wanted = chosen(parser, images, args.images)
    if args.tag == "latest":
        parser.error("a tag that moves makes pods differ by when they were started; give another")
    tools = [(tool, found) for tool in (skopeo, crane) if (found := shutil.which(tool.__name__))]
    if not tools:
        print(INSTALL + ", ".join(str(image.archive.resolve()) for image in wanted), file=sys.stderr)
        return 1
    tool, program = tools[0]
    pushed = []
    for image in wanted:
        ref = f"{args.registry}/{image.title}:{args.tag or image.tag}"
        print(f"pushing {ref} ({image.size_mb:.0f} MB) with {tool.__name__} ...", flush=True)
        if code := tool(program, image, ref, args.insecure):
            print(
                f"{program} failed with status {code}: see above. If it is about rights, log in first"
                f" ({'skopeo login' if tool is skopeo else 'crane auth login'} {args.registry.split('/')[0]}).",
                file=sys.stderr,
            )
            return 1
        pushed.append(f"{ref.rpartition(':')[0]}@{image.digest}")
    print("\n".join(["pushed:", *pushed]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
