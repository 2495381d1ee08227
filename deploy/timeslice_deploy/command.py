"""The commands //deploy:apply, :diff, :delete and :status: flags in, exit status out."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from timeslice_deploy import certificates, checks, manifests
from timeslice_deploy import kubectl as kubectl_
from timeslice_deploy.apply import Wanted, apply, certificate_plan
from timeslice_deploy.delete import delete
from timeslice_deploy.errors import BadUsage, DeployError
from timeslice_deploy.kubectl import Kubectl
from timeslice_deploy.manifests import Object
from timeslice_deploy.names import FIELD_MANAGER, NAMESPACE
from timeslice_deploy.status import status

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

COMMANDS = {
    "apply": "Install timeslice in a cluster or bring it up to date, and wait until it runs.",
    "diff": "Show what :apply would change. Exit status 1 if that is anything.",
    "delete": "Take timeslice out of a cluster. TimeSliceGroups and their definition stay, unless --groups is given.",
    "status": "Show what runs, where, and for how long the certificates are good. Exit status 1 unless all is well.",
}


class Parser(argparse.ArgumentParser):
    """One line for a wrong flag, not a page."""

    def error(self, message: str) -> NoReturn:
        raise BadUsage(f"{message}; see --help")


def main(flags: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run one command; the exit status. The first flag is its name."""
    env = os.environ if env is None else env
    try:
        given = parser().parse_args(sys.argv[1:] if flags is None else flags)
        return asyncio.run(_run(given, env))
    except BadUsage as error:
        print(f"deploy: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except DeployError as error:
        print(f"deploy: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("deploy: interrupted; what was applied stays, and the same command goes on from there", file=sys.stderr)
        return EXIT_INTERRUPTED


def parser() -> Parser:
    """Of all commands."""
    top = Parser(prog="deploy", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        one = commands.add_parser(name, description=text, allow_abbrev=False, prog=f"./bazelw run //deploy:{name} --")
        one.add_argument(
            "--context", metavar="NAME", help="of the kubeconfig; must be named, the current one is not taken"
        )
        one.add_argument(
            "--kubectl", metavar="PATH", help="default: $KUBECTL, else a //tools/kind cluster's own, else that on PATH"
        )
        if name != "status":
            one.add_argument(
                "--overlay",
                metavar="NAME",
                required=True,
                help="a folder of deploy/kustomize/overlays, or ./FOLDER with a kustomization of your own",
            )
            one.add_argument("--registry", metavar="HOST/PATH", help="where nodes get our images from")
        if name in ("apply", "delete"):
            one.add_argument("--timeout", type=float, default=300.0, metavar="S", help="of the wait (default: 300)")
        if name == "apply":
            one.add_argument(
                "--rotate-certs", action="store_true", help="new certificates and keys; orchestrator and agents restart"
            )
            one.add_argument(
                "--new-ca",
                action="store_true",
                help="a new authority too, as after a theft of keys: agents are unreachable until each has restarted",
            )
            one.add_argument(
                "--force-conflicts", action="store_true", help="take over fields that somebody else has set"
            )
        if name == "delete":
            one.add_argument(
                "--groups", action="store_true", help="delete the TimeSliceGroups and their definition too"
            )
            one.add_argument("--force", action="store_true", help="even if jobs hold groups or wait for them")
    return top


async def _run(given: argparse.Namespace, env: Mapping[str, str]) -> int:
    if getattr(given, "timeout", 1.0) <= 0:
        raise BadUsage(f"--timeout must be above 0, not {given.timeout:g}")
    program = kubectl_.find(env, given.kubectl, given.context)
    objects: list[Object] = []
    if given.command != "status":
        objects = await manifests.build(program, manifests.kustomize_folder(env), given.overlay)
        if given.registry is not None:
            objects = manifests.with_registry(objects, given.registry)
    kubectl = Kubectl(program, await checks.chosen_context(program, given.context, kubectl_.kind_contexts(env)))
    match given.command:
        case "apply":
            wanted = Wanted(given.rotate_certs or given.new_ca, given.new_ca, given.force_conflicts, given.timeout)
            await apply(kubectl, objects, wanted, say)
            say(f"timeslice runs; ./bazelw run //deploy:status -- --context {kubectl.context}")
            return 0
        case "diff":
            return await _diff(kubectl, objects)
        case "delete":
            await delete(
                kubectl, objects, with_groups=given.groups, force=given.force, timeout_s=given.timeout, say=say
            )
            return 0
        case _:
            lines, is_well = await status(kubectl, certificates.now())
            say("\n".join(lines))
            return 0 if is_well else EXIT_FAILED


async def _diff(kubectl: Kubectl, objects: Sequence[Object]) -> int:
    """Certificates are not shown; that they would be made or renewed shows in the annotations of the pods."""
    await checks.server_version(kubectl)
    if await kubectl.get("namespace", NAMESPACE) is None:
        say(f"not installed: there is no namespace {NAMESPACE}; :apply would create")
        say("\n".join(f"  {manifests.described(o)}" for o in objects))
        return EXIT_FAILED
    plan = await certificate_plan(kubectl, rotate=False, new_ca=False)
    wanted = manifests.with_certificates(objects, plan.digests)
    answer = await kubectl.call(
        "diff", "--server-side", f"--field-manager={FIELD_MANAGER}", "-f", "-", stdin=manifests.dump(wanted))
    if answer.status not in (0, 1) or (answer.status == 1 and not answer.out):
        raise kubectl.failure(answer, ("diff",))
    say(answer.out or "nothing would change\n", end="")
    return answer.status


def say(text: str, end: str = "\n") -> None:
    """On stdout, at once: a wait is watched."""
    print(text, end=end, flush=True)
