"""The commands that the image's containers run."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from gpu_mock_kubernetes import installer, offers
from gpu_mock_kubernetes.config import ConfigError, NodeFolders, Recipe, needed, source_folder
from gpu_mock_kubernetes.folder_watch import FolderGone
from gpu_mock_kubernetes.logs import note, set_up
from gpu_mock_kubernetes.mock import MockError

PATIENCE_S = 20.0
"""For the pods that are deleted together with the driver; less than terminationGracePeriodSeconds."""

log = logging.getLogger("gpu_mock_kubernetes")


def main(arguments: Sequence[str] | None = None, env: Mapping[str, str] = os.environ) -> int:
    """Run one command until it is done, or until SIGTERM. Returns the exit code: 1 after a failure, which it logs."""
    parser = argparse.ArgumentParser(prog="gpu_mock_kubernetes", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, run, text in (
        ("driver", _driver, "install, stay, and uninstall when the DaemonSet is deleted"),
        ("install", _install, "install once"),
        ("uninstall", _uninstall, "take all away from this node"),
        ("wait", _wait, "return when this node has its driver"),
        ("device-plugin", _device_plugin, "offer nvidia.com/gpu to the kubelet"),
        ("dra-plugin", _dra_plugin, "the DRA driver gpu.nvidia.com"),
    ):
        commands.add_parser(name, help=text, description=text).set_defaults(run=run)
    set_up()
    try:
        parser.parse_args(arguments).run(env)
    except (ConfigError, MockError, installer.DevicesInUse, FolderGone, OSError) as error:
        note(log, "failed", logging.ERROR, error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def _install(env: Mapping[str, str]) -> None:
    installer.install(source_folder(env), Recipe.from_env(env), NodeFolders.from_env(env))


def _uninstall(env: Mapping[str, str]) -> None:
    installer.uninstall(NodeFolders.from_env(env), PATIENCE_S)


def _driver(env: Mapping[str, str]) -> None:
    namespace, daemon_set = needed(env, "POD_NAMESPACE"), needed(env, "MOCK_DAEMONSET")
    _install(env)

    async def stay() -> None:
        await asyncio.Event().wait()

    _until_sigterm(stay)
    # Imported late: the installer needs none of it, and sleeps for most of its life.
    from gpu_mock_kubernetes import api_server, lifetime

    async def ask() -> bool:
        async with api_server.in_cluster() as api:
            return await lifetime.is_deleted(api, namespace, daemon_set)

    if asyncio.run(ask()):
        _uninstall(env)


def _wait(env: Mapping[str, str]) -> None:
    _until_sigterm(lambda: offers.wait_until_there(NodeFolders.from_env(env)))


def _device_plugin(env: Mapping[str, str]) -> None:
    from gpu_mock_kubernetes import device_plugin

    ready = _ready(env)
    _until_sigterm(lambda: device_plugin.serve(NodeFolders.from_env(env), ready))


def _dra_plugin(env: Mapping[str, str]) -> None:
    from gpu_mock_kubernetes import api_server, dra_plugin

    node, ready = needed(env, "NODE_NAME"), _ready(env)

    async def serve() -> None:
        async with api_server.in_cluster() as api:
            await dra_plugin.serve(NodeFolders.from_env(env), api, node, ready)

    _until_sigterm(serve)


def _ready(env: Mapping[str, str]) -> Callable[[], None]:
    """What says to the kubelet's startup probe that all is done: the file READY_FILE, if that is set."""
    if not (named := env.get("READY_FILE")):
        return lambda: None
    Path(named).unlink(missing_ok=True)  # of the container's last life
    return Path(named).touch


def _until_sigterm(work: Callable[[], Awaitable[None]]) -> None:
    """Run it; SIGTERM and SIGINT cancel it, in order. As PID 1 a process gets no signal that it does not handle."""

    async def run() -> None:
        task = asyncio.ensure_future(work())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            note(log, "ends")

    try:
        asyncio.run(run())
    except* (OSError, FolderGone) as errors:
        raise errors.exceptions[0] from None


if __name__ == "__main__":
    sys.exit(main())
