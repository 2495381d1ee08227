"""The commands of //tools/kind.

    ./bazelw run //tools/kind:up -- --name dev [--workers 2]     make a cluster
    ./bazelw run //tools/kind:kubectl -- get pods -A             kubectl for it
    ./bazelw run //tools/kind:run -- CMD ...                     CMD in the cluster's network
    ./bazelw run //tools/kind:shell                              a shell there
    ./bazelw run //tools/kind:load -- ARCHIVE ...                image archives into all nodes
    ./bazelw run //tools/kind:list                               clusters of this user
    ./bazelw run //tools/kind:down -- --name dev                 delete it, and all that it left
    ./bazelw run //tools/kind:prepare                            build what is needed, make nothing
    ./bazelw run //tools/kind:prune                              remove what was built

Each takes `--name NAME` first; where there is one cluster, that one is meant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from timeslice_kind.clusters import Cluster, Clusters, Sources, docker_answers
from timeslice_kind.errors import KindError
from timeslice_kind.golang import default_env


def find_sources() -> Sources:
    """Beside this package; pause is built by Bazel, which says where, from the runfiles' root."""
    here = Path(__file__).absolute().parent.parent
    return Sources(here / "go", here / "node", here / "pause")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="//tools/kind", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = made.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make a cluster")
    up.add_argument("--name", default="timeslice", help="kind's name for the cluster (default: timeslice)")
    up.add_argument("--workers", type=int, default=2, help="nodes besides the control plane (default: 2)")
    prepare = verbs.add_parser("prepare", help="build programs and node image")
    for verb in (up, prepare):
        verb.add_argument("--engine", choices=("docker", "podman"), help="default: Docker where an engine answers")
    for name, text in (("down", "delete a cluster"), ("shell", "a shell that reaches the cluster")):
        verbs.add_parser(name, help=text).add_argument("--name")
    load = verbs.add_parser("load", help="put image archives into all nodes")
    load.add_argument("--name")
    load.add_argument("archives", nargs="+", type=Path)
    for name, text in (("kubectl", "kubectl for the cluster"), ("run", "a command that reaches the cluster")):
        passed = verbs.add_parser(name, help=text, add_help=False, prefix_chars="\0")
        passed.add_argument("argv", nargs=argparse.REMAINDER)
    verbs.add_parser("list", help="the clusters of this user")
    verbs.add_parser("prune", help="remove what was built")
    return made


def take_name(argv: list[str]) -> tuple[str | None, list[str]]:
    """A leading `--name X` or `--name=X` is ours, all the rest the command's."""
    if argv[:1] == ["--name"] and len(argv) > 1:
        name, argv = argv[1], argv[2:]
    elif argv and argv[0].startswith("--name="):
        name, argv = argv[0].removeprefix("--name="), argv[1:]
    else:
        name = None
    return name, argv[1:] if argv[:1] == ["--"] else argv


def choose(clusters: Clusters, name: str | None) -> Cluster:
    """The named cluster, or the only one."""
    if name:
        return clusters.get(name)
    there = clusters.all()
    if len(there) != 1:
        names = ", ".join(cluster.name for cluster in there) or "none"
        raise KindError(f"say which cluster with --name; there are: {names}")
    return there[0]


def execute(cluster: Cluster, argv: Sequence[str]) -> int:
    """Become the command."""
    command = cluster.command(argv)
    env = cluster.env(os.environ)
    sys.stdout.flush()
    os.execvpe(command[0], command, env)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    # Bazel starts us elsewhere; people mean the folder in which they are.
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY") or ".")
    clusters = Clusters(find_sources())
    try:
        return serve(clusters, args)
    except KindError as error:
        print(f"kind: {error}", file=sys.stderr)
        return 1


def serve(clusters: Clusters, args: argparse.Namespace) -> int:
    match args.verb:
        case "up":
            cluster = clusters.up(args.name, args.workers, args.engine)
            print(told(cluster))
        case "prepare":
            clusters.prepare(args.engine or ("docker" if docker_answers(default_env()) else "podman"))
        case "down":
            clusters.down(choose(clusters, args.name).name)
        case "load":
            choose(clusters, args.name).load(args.archives)
        case "shell":
            return execute(choose(clusters, args.name), [os.environ.get("SHELL") or "/bin/sh"])
        case "kubectl" | "run":
            name, rest = take_name(args.argv)
            cluster = choose(clusters, name)
            cluster.existing()
            return execute(cluster, [cluster.kubectl, *rest] if args.verb == "kubectl" else rest)
        case "list":
            for cluster in clusters.all():
                record = cluster.record
                print(f"{cluster.name}\t{record.engine if record else 'unfinished'}\t{cluster.kubeconfig}")
        case "prune":
            for path in clusters.prune():
                print(f"removed {path}")
    return 0


def told(cluster: Cluster) -> str:
    """What somebody needs who wants to use the cluster."""
    record = cluster.existing()
    lines = [f"cluster {cluster.name} is up: context {cluster.context}, KUBECONFIG={cluster.kubeconfig}"]
    if record.engine == "podman":
        lines.append(f"Only from inside its network can it be reached; {cluster.kubectl} goes there by itself, else:")
        lines.append(f"  ./bazelw run //tools/kind:run -- --name {cluster.name} COMMAND ...")
    lines.append(f"  ./bazelw run //tools/kind:kubectl -- --name {cluster.name} get nodes")
    lines.append(f"  ./bazelw run //tools/kind:down -- --name {cluster.name}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
