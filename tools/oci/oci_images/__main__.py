"""The steps of the Bazel rules in tools/oci/defs.bzl: a layer each, or an image."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from oci_images.bytecode import add_bytecode
from oci_images.debs import add_debs, add_system_files
from oci_images.image import PackedLayer, write_image
from oci_images.layer import Facts, Layer, Package
from oci_images.sbom import bill_of_materials
from oci_images.wheels import add_wheels


def pack_debs(args: argparse.Namespace) -> None:
    layer = Layer()
    packages = add_debs(layer, args.files, args.leave_out)
    if args.system:
        add_system_files(layer)
    _finish(layer, packages, args)


def pack_wheels(args: argparse.Namespace) -> None:
    layer = Layer()
    _finish(layer, add_wheels(layer, args.files, args.leave_out, args.commands), args)


def pack_files(args: argparse.Namespace) -> None:
    """Each argument is SOURCE=PLACE, where PLACE is a path in the image without a leading slash."""
    layer = Layer()
    for pair in args.files:
        source, _, place = str(pair).partition("=")
        program = place.rsplit("/", 1)[0].endswith("bin") or place in args.executable
        layer.add_file(place, Path(source).read_bytes(), 0o755 if program else 0o644)
    for pair in args.symlink:
        name, _, target = pair.partition("=")
        layer.add_symlink(name, target)
    _finish(layer, [], args)


def _finish(layer: Layer, packages: list[Package], args: argparse.Namespace) -> None:
    add_bytecode(layer)
    Facts(layer.write(args.out), tuple(packages)).write(args.facts)


def pack_image(args: argparse.Namespace) -> None:
    layers = [PackedLayer(path, Facts.read(facts)) for path, facts in zip(args.layer, args.facts, strict=True)]
    settings = json.loads(args.config.read_text(encoding="utf-8"))
    labels = settings["Labels"]
    digest = write_image(args.out, args.ref, settings, layers)
    args.digest.write_text(digest + "\n", encoding="utf-8")
    document = bill_of_materials(
        name=args.ref.rpartition("/")[2].partition(":")[0],
        version=labels["org.opencontainers.image.version"],
        licence=labels["org.opencontainers.image.licenses"],
        source=labels["org.opencontainers.image.source"],
        digest=digest,
        packages=[package for layer in layers for package in layer.facts.packages],
    )
    args.sbom.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, fromfile_prefix_chars="@")
    steps = parser.add_subparsers(required=True)
    for name, run in (("debs", pack_debs), ("wheels", pack_wheels), ("files", pack_files)):
        step = steps.add_parser(name)
        step.set_defaults(run=run)
        step.add_argument("--out", type=Path, required=True)
        step.add_argument("--facts", type=Path, required=True)
        step.add_argument("--leave-out", action="append", default=[])
        step.add_argument("--system", action="store_true")
        step.add_argument("--commands", action="store_true")
        step.add_argument("--executable", action="append", default=[])
        step.add_argument("--symlink", action="append", default=[])
        step.add_argument("files", nargs="*", type=Path)
    step = steps.add_parser("image")
    step.set_defaults(run=pack_image)
    for option in ("--out", "--digest", "--sbom", "--config"):
        step.add_argument(option, type=Path, required=True)
    step.add_argument("--ref", required=True)
    step.add_argument("--layer", action="append", type=Path, default=[])
    step.add_argument("--facts", action="append", type=Path, default=[])
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
