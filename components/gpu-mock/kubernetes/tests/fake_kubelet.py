"""A kubelet as far as its plugins can tell: it takes registrations, follows devices, and forgets all when it starts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc

from gpu_mock_kubernetes.config import NodeFolders
from kubelet_api import device_plugin_pb2 as pb
from kubelet_api import device_plugin_pb2_grpc as pb_grpc
from kubelet_api import dra_pb2, dra_pb2_grpc, plugin_registration_pb2, plugin_registration_pb2_grpc

DEADLINE_S = 20.0
"""For what comes at once on an idle machine."""


@contextlib.asynccontextmanager
async def serving(plugin: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A plugin that serves; stopped at the end as SIGTERM stops it."""
    task = asyncio.create_task(plugin)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class FakeKubelet(pb_grpc.RegistrationServicer):
    """Started and stopped by `async with`; `kill` and `start` in between."""

    def __init__(self, folders: NodeFolders) -> None:
        self._folders = folders
        self._server: grpc.aio.Server | None = None
        self._followers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Condition()
        self._endpoint = ""
        self.registrations: list[pb.RegisterRequest] = []
        self.refuse: grpc.StatusCode | None = None
        """The answer to the next registration, instead of taking it."""
        self.health: dict[str, str] = {}
        """Of the devices as the plugin said last, by id."""

    async def __aenter__(self) -> FakeKubelet:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """As at a start of the kubelet: the folder of device plugins is emptied, nothing is known of any of them."""
        for left in self._folders.device_plugins.iterdir():
            left.unlink()
        self.health = {}
        self._server = grpc.aio.server()
        pb_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self._folders.device_plugins / 'kubelet.sock'}")
        await self._server.start()

    async def kill(self) -> None:
        """Nothing is told to anybody; a socket that nobody serves may stay behind."""
        for task in self._followers:
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        self._followers = []
        if self._server:
            await self._server.stop(None)
            self._server = None

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        if self.refuse:
            code, self.refuse = self.refuse, None
            await context.abort(code, "not now")
        self.registrations.append(request)
        self._endpoint = request.endpoint
        self._followers.append(asyncio.create_task(self._follow(self._folders.device_plugins / request.endpoint)))
        return pb.Empty()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until it is so, as seen after each message of a plugin."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(true)

    async def allocate(self, *containers: list[str]) -> list[pb.ContainerAllocateResponse]:
        """What each container gets for its devices."""
        socket = self._folders.device_plugins / self.registrations[-1].endpoint
        async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
            requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
            answer = await pb_grpc.DevicePluginStub(channel).Allocate(
                pb.AllocateRequest(container_requests=requests), timeout=DEADLINE_S
            )
        return list(answer.container_responses)

    async def _follow(self, socket: Path) -> None:
        async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
            stub = pb_grpc.DevicePluginStub(channel)
            await stub.GetDevicePluginOptions(pb.Empty(), timeout=DEADLINE_S)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for message in stub.ListAndWatch(pb.Empty()):
                    await self._note({one.ID: one.health for one in message.devices})
            # As Kubernetes 1.37: what is noticed late is taken for the end of whoever has that socket's name now.
            if socket.name == self._endpoint:
                await self._note({})

    async def _note(self, health: dict[str, str]) -> None:
        async with self._changed:
            self.health = health
            self._changed.notify_all()

    # ---- DRA: the kubelet comes to the plugin

    async def find_dra_plugin(self, socket: Path) -> plugin_registration_pb2.PluginInfo:
        """As its plugin watcher does with a socket in plugins_registry, also at each start: ask, and say yes."""
        async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
            stub = plugin_registration_pb2_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(plugin_registration_pb2.InfoRequest(), timeout=DEADLINE_S)
            await stub.NotifyRegistrationStatus(
                plugin_registration_pb2.RegistrationStatus(plugin_registered=True), timeout=DEADLINE_S
            )
        return info

    async def prepare(self, endpoint: str, *claims: dra_pb2.Claim) -> dict[str, dra_pb2.NodePrepareResourceResponse]:
        """What the driver answers for each claim, by uid."""
        async with grpc.aio.insecure_channel(f"unix://{endpoint}") as channel:
            answer = await dra_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(
                dra_pb2.NodePrepareResourcesRequest(claims=claims), timeout=DEADLINE_S
            )
        return dict(answer.claims)

    async def unprepare(self, endpoint: str, *claims: dra_pb2.Claim) -> dict[str, str]:
        """Errors by uid; empty: none."""
        async with grpc.aio.insecure_channel(f"unix://{endpoint}") as channel:
            answer = await dra_pb2_grpc.DRAPluginStub(channel).NodeUnprepareResources(
                dra_pb2.NodeUnprepareResourcesRequest(claims=claims), timeout=DEADLINE_S
            )
        return {uid: one.error for uid, one in answer.claims.items()}
