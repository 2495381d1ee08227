"""The device plugin: offers the mock GPUs to the kubelet as nvidia.com/gpu (device plugin API v1beta1)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from gpu_mock_kubernetes import cdi, offers
from gpu_mock_kubernetes.config import NodeFolders
from gpu_mock_kubernetes.folder_watch import Change, FolderWatch
from gpu_mock_kubernetes.kubelet_sockets import served
from gpu_mock_kubernetes.logs import note
from gpu_mock_kubernetes.mock import MockDevice
from kubelet_api import device_plugin_pb2 as pb
from kubelet_api import device_plugin_pb2_grpc as pb_grpc

RESOURCE = "nvidia.com/gpu"
SOCKETS = "nvidia.com-gpu-*.sock"
"""Another name for each registration: a kubelet that notices late that it lost one drops who has its name now."""
KUBELET_SOCKET = "kubelet.sock"
API_VERSION = "v1beta1"
REGISTER_TIMEOUT_S = 10.0
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""After a kubelet that is there refused us, or did not answer. A kubelet that starts is noticed by itself."""

Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger("gpu_mock_kubernetes.device_plugin")


class Offered:
    """The devices as the kubelet is to know them; who follows hears of each change."""

    def __init__(self) -> None:
        self._devices: tuple[MockDevice, ...] | None = None
        self._changed = asyncio.Condition()

    @property
    def devices(self) -> tuple[MockDevice, ...]:
        return self._devices or ()

    async def put(self, devices: Sequence[MockDevice]) -> None:
        async with self._changed:
            self._devices = tuple(devices)
            self._changed.notify_all()

    async def follow(self) -> AsyncIterator[tuple[MockDevice, ...]]:
        """Yield the devices, at once (or after the first `put`) and after each change; a slow reader skips some."""
        known: tuple[MockDevice, ...] | None = None
        while True:
            async with self._changed:
                while self._devices is None or self._devices == known:
                    await self._changed.wait()
                known = self._devices
            yield known


class DevicePluginService(pb_grpc.DevicePluginServicer):
    """What the kubelet calls."""

    def __init__(self, offered: Offered) -> None:
        self._offered = offered

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        async for devices in self._offered.follow():
            yield pb.ListAndWatchResponse(
                devices=[pb.Device(ID=one.uuid, health="Unhealthy" if one.is_lost else "Healthy") for one in devices]
            )

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        known = {one.uuid for one in self._offered.devices}
        for container in request.container_requests:
            if unknown := sorted(set(container.devices_ids) - known):
                await context.abort(
                    grpc.StatusCode.NOT_FOUND, f"this node has no device {', '.join(unknown)}; it has {sorted(known)}"
                )
        note(log, "allocated", uuids=[list(container.devices_ids) for container in request.container_requests])
        return pb.AllocateResponse(container_responses=[_answer(one.devices_ids) for one in request.container_requests])


async def serve(folders: NodeFolders, on_registered: Callable[[], None]) -> None:
    """Serve until cancelled; `on_registered` is called whenever a kubelet has taken the registration."""
    offered = Offered()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_feed(offered, folders), name="devices")
        tasks.create_task(_stay_registered(offered, folders.device_plugins, on_registered), name="registration")


def _answer(uuids: Sequence[str]) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        # For programs that look at what NVIDIA's plugin sets; what holds is what CDI grants.
        envs={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)},
        cdi_devices=[pb.CDIDevice(name=cdi.device_name(uuid)) for uuid in uuids],
    )


async def _feed(offered: Offered, folders: NodeFolders) -> None:
    async for node in offers.follow(folders):
        await offered.put(node.devices)


async def _stay_registered(offered: Offered, folder: Path, on_registered: Callable[[], None]) -> None:
    """Serve and register, again after each start of the kubelet, which forgets plugins and empties the folder."""

    def add_services(server: grpc.aio.Server) -> None:
        pb_grpc.add_DevicePluginServicer_to_server(  # type: ignore[no-untyped-call]
            DevicePluginService(offered), server
        )

    kubelet = folder / KUBELET_SOCKET
    refused = 0
    with FolderWatch(folder) as watch:
        _remove_what_was_left(folder)
        while True:
            watch.forget()
            socket = folder / SOCKETS.replace("*", secrets.token_hex(4))
            async with served([socket], add_services):
                patience_s = None  # a kubelet that is not there, or knows us, is waited for
                if kubelet.is_socket():
                    if await _register(kubelet, socket.name):
                        refused = 0
                        on_registered()
                    else:
                        refused += 1
                        patience_s = RETRY_S[min(refused, len(RETRY_S)) - 1]
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await _kubelet_started(watch, kubelet, socket)


async def _kubelet_started(watch: FolderWatch, kubelet: Path, socket: Path) -> None:
    """Wait until the kubelet's socket is made, or until ours is gone from beside it."""
    while True:
        changes = await watch.changes()
        if changes.get(kubelet.name, Change(0)) & (Change.CREATED | Change.MOVED_HERE):
            return
        if _is_alone(kubelet, socket):
            return


def _is_alone(kubelet: Path, socket: Path) -> bool:
    return kubelet.is_socket() and not socket.is_socket()


def _remove_what_was_left(folder: Path) -> None:
    """By a predecessor that was killed."""
    for left in folder.glob(SOCKETS):
        left.unlink(missing_ok=True)


async def _register(kubelet: Path, endpoint: str) -> bool:
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=RESOURCE, options=pb.DevicePluginOptions()
    )
    try:
        async with grpc.aio.insecure_channel(f"unix://{kubelet}") as channel:
            stub = pb_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request, timeout=REGISTER_TIMEOUT_S, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        note(
            log, "not registered", logging.WARNING, code=error.code().name, detail=error.details(), socket=str(kubelet)
        )
        return False
    note(log, "registered", resource=RESOURCE)
    return True
