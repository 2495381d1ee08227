"""Build a wheel from pyproject.toml with setuptools, the same bytes each time.

argv: OUT SETUPTOOLS_WHEEL PYPROJECT README MANIFEST; a line of MANIFEST is "source<TAB>path below src/".
"""

import os
import pathlib
import shutil
import sys
import tempfile


def quietly(call, *args):
    """What call returns; what it prints is shown only if it fails."""
    with tempfile.TemporaryFile() as chatter:
        saved = os.dup(1), os.dup(2)
        os.dup2(chatter.fileno(), 1)
        os.dup2(chatter.fileno(), 2)
        try:
            return call(*args)
        except BaseException:
            chatter.seek(0)
            os.write(saved[1], chatter.read())
            raise
        finally:
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)


def main():
    out, setuptools, pyproject, readme, manifest = (os.path.abspath(a) for a in sys.argv[1:6])
    lines = [line.split("\t") for line in pathlib.Path(manifest).read_text().splitlines()]
    os.environ["SOURCE_DATE_EPOCH"] = "315532800"  # 1980-01-01, the first that a zip can hold
    os.environ["PYTHONHASHSEED"] = "0"
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as tmp:
        root = pathlib.Path(tmp, "src-tree")
        (root / "src").mkdir(parents=True)
        for src, dest in lines:
            target = root / "src" / dest
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(src, target)
            target.chmod(0o644)
        shutil.copyfile(pyproject, root / "pyproject.toml")
        shutil.copyfile(readme, root / "README.md")
        # unpacked here, as it has a file with a space in its name, which no Bazel label can have
        shutil.unpack_archive(setuptools, os.path.join(tmp, "setuptools"), "zip")
        sys.path.insert(0, os.path.join(tmp, "setuptools"))
        os.chdir(root)
        from setuptools import build_meta

        sys.argv = sys.argv[:1]
        name = quietly(build_meta.build_wheel, tmp)
        shutil.copyfile(os.path.join(tmp, name), out)
        os.chdir("/")


main()
