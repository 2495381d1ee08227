"""Programs built from Go modules: go.mod and go.sum say what, by version and hash, and no build changes them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from timeslice_kind.cache import Cache, content_key
from timeslice_kind.debian import need
from timeslice_kind.errors import KindError
from timeslice_kind.modules import Part, linker_flags, targets, version
from timeslice_kind.processes import run
from timeslice_kind.progress import say, step

SELF_UPDATING = (1, 21)
"""From this version on Go fetches the toolchain that a go.mod asks for by itself."""

TOOLCHAIN = "golang.org/toolchain"


def go_version(text: str) -> tuple[int, int]:
    """Of what `go version` prints."""
    found = re.search(r"go(\d+)\.(\d+)", text)
    if not found:
        raise KindError(f"cannot tell the version of Go from {text.strip()!r}")
    return int(found[1]), int(found[2])


class Go:
    """The Go command, and an environment in which go.mod and go.sum decide all."""

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        self.program = program
        self.env = {**env, "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0", "GOWORK": "off"}
        self.env.pop("GOROOT", None)  # another Go's, it may be

    def run(self, *arguments: str, cwd: Path, log: Path | None = None) -> str:
        return run([self.program, *arguments], env=self.env, cwd=cwd, log=log)


def find_go(cache: Cache, sources: Path, env: Mapping[str, str]) -> Go:
    """Go from $GO, PATH or Debian's package; if that is too old, the toolchain module that it fetches for us.

    Debian bookworm has 1.19: too old to build Kubernetes, good enough to fetch golang.org/toolchain through its module
    proxy and to check it against go/toolchain/go.sum.
    """
    program = env.get("GO") or shutil.which("go", path=env.get("PATH")) or debian_go(env)
    go = Go(program, env)
    found = go_version(go.run("version", cwd=sources))
    if found >= SELF_UPDATING:
        return go
    module = sources / "toolchain"
    wanted = version((module / "go.mod").read_text(), TOOLCHAIN)
    say(f"{program} is Go {found[0]}.{found[1]}: taking {TOOLCHAIN} {wanted}")
    entry = cache.get("go", content_key(module), lambda folder: unpack_toolchain(go, module, folder))
    return Go(str(entry / "bin/go"), {**env, "GOTOOLCHAIN": "local"})


def debian_go(env: Mapping[str, str]) -> str:
    """Debian's Go, installed if need be."""
    need({"/usr/bin/go": "golang-go"}, env)
    return "/usr/bin/go"


def unpack_toolchain(go: Go, module: Path, folder: Path) -> None:
    """A toolchain module, made executable: module zips carry no modes."""
    scratch = folder / "module"
    shutil.copytree(module, scratch)
    with step(f"fetching {TOOLCHAIN}"):
        answer = json.loads(go.run("mod", "download", "-json", TOOLCHAIN, cwd=scratch))
    shutil.rmtree(scratch)
    shutil.copytree(answer["Dir"], folder, dirs_exist_ok=True)
    run(["chmod", "--recursive", "u+w", str(folder)])
    for programs in ("bin", "pkg/tool"):
        for path in (folder / programs).rglob("*"):
            if path.is_file():
                path.chmod(0o755)


def part_key(sources: Path, part: Part) -> str:
    """Changes with what is built and how."""
    go_mod = (sources / part.name / "go.mod").read_text()
    return content_key(sources / part.name, part.tags, linker_flags(part, version(go_mod, part.module)))


def build_part(cache: Cache, sources: Path, part: Part, env: Mapping[str, str]) -> Path:
    """The folder with the part's programs, built now unless that was done before."""

    def make(folder: Path) -> None:
        go = find_go(cache, sources, env)
        scratch = folder / "module"
        # A copy: no build writes beside the sources, and Bazel's links to them stay out of Go's sight.
        shutil.copytree(sources / part.name, scratch)
        go_mod = (scratch / "go.mod").read_text()
        told = version(go_mod, part.module)
        wanted = targets(part, go_mod)
        for number, target in enumerate(wanted, 1):
            with step(f"building {target.program} {told} ({part.name}, {number} of {len(wanted)})"):
                go.run(
                    "build", "-trimpath", "-buildvcs=false", "-tags", part.tags,
                    "-ldflags", linker_flags(part, told), "-o", str(folder / "bin" / target.program), target.package,
                    cwd=scratch,
                )  # fmt: skip
        shutil.rmtree(scratch)

    return cache.get(part.name, part_key(sources, part), make) / "bin"


def default_env() -> dict[str, str]:
    """Ours, with Go's usual place on PATH, which Bazel's environment leaves out."""
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([env.get("PATH", "/usr/bin:/bin"), "/usr/local/go/bin"])
    env.setdefault("HOME", os.path.expanduser("~"))
    return env
