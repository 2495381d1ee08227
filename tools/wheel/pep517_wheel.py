"""Build a wheel from pyproject.toml with setuptools, the same bytes each time.

    pep517_wheel.py [--runfiles] RECIPE OUT

RECIPE (JSON, written by pep517_wheel of defs.bzl) names the files, where each belongs, the version and the platform.
With --runfiles the files are taken by their place among a test's runfiles.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

VERSION_MARK = "0+unreleased"
"""What stands in a pyproject.toml for the version in tools/wheel/version.bzl."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runfiles", action="store_true")
    parser.add_argument("recipe", type=pathlib.Path)
    parser.add_argument("out", type=os.path.abspath)
    args = parser.parse_args()
    recipe = json.loads(args.recipe.read_text(encoding="utf-8"))
    key = "runfile" if args.runfiles else "path"
    os.environ["SOURCE_DATE_EPOCH"] = "315532800"  # 1980-01-01, the first that a zip can hold
    os.environ["PYTHONHASHSEED"] = "0"
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp, "tree")
        for content in recipe["contents"]:
            target = root / content["place"]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(content[key], target)
            target.chmod(0o755 if content["executable"] else 0o644)
        pyproject = root / "pyproject.toml"
        pyproject.write_text(
            pyproject.read_text(encoding="utf-8").replace(VERSION_MARK, recipe["version"]), encoding="utf-8"
        )
        # unpacked here, as it has a file with a space in its name, which no Bazel label can have
        shutil.unpack_archive(recipe["setuptools"][key], os.path.join(tmp, "setuptools"), "zip")
        sys.path.insert(0, os.path.join(tmp, "setuptools"))
        sys.argv = sys.argv[:1]
        os.chdir(root)
        name = quietly(lambda: build(recipe["platform"], tmp))
        shutil.copyfile(os.path.join(tmp, name), args.out)
        os.chdir("/")


def build(platform: str, folder: str) -> str:
    """The wheel's name in `folder`, after setuptools has made it from the tree in the current folder."""
    from setuptools import build_meta
    from setuptools.command.bdist_wheel import bdist_wheel

    if platform != "any":
        # For setuptools only what it compiled itself is not pure; our binaries come in as data.
        def get_tag(self: bdist_wheel) -> tuple[str, str, str]:
            self.root_is_pure = False
            return "py3", "none", platform

        bdist_wheel.get_tag = get_tag
    return build_meta.build_wheel(folder)


def quietly(call):
    """What call returns; what it prints is shown only if it fails."""
    with tempfile.TemporaryFile() as chatter:
        saved = os.dup(1), os.dup(2)
        os.dup2(chatter.fileno(), 1)
        os.dup2(chatter.fileno(), 2)
        try:
            return call()
        except BaseException:
            chatter.seek(0)
            os.write(saved[1], chatter.read())
            raise
        finally:
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)


if __name__ == "__main__":
    main()
