"""The DRA driver gpu.nvidia.com: prepares claims for the kubelet (DRA v1) and publishes the node's devices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc

from gpu_mock_kubernetes import claims, offers
from gpu_mock_kubernetes.api_server import ApiServer, ApiTrouble
from gpu_mock_kubernetes.claims import DRIVER, CannotPrepare
from gpu_mock_kubernetes.config import NodeFolders
from gpu_mock_kubernetes.kubelet_sockets import served
from gpu_mock_kubernetes.logs import note
from gpu_mock_kubernetes.mock import MockDevice
from gpu_mock_kubernetes.publisher import Publisher
from kubelet_api import dra_pb2 as pb
from kubelet_api import dra_pb2_grpc as pb_grpc
from kubelet_api import plugin_registration_pb2 as registration_pb
from kubelet_api import plugin_registration_pb2_grpc as registration_grpc

DRA_SOCKET = "dra.sock"
REGISTRATION_SOCKET = f"{DRIVER}-reg.sock"
SERVICE = "v1.DRAPlugin"

Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger("gpu_mock_kubernetes.dra_plugin")


class DraService(pb_grpc.DRAPluginServicer):
    """Prepares and unprepares: what is answered depends on the claim and on the node's devices alone."""

    def __init__(self, api: ApiServer, pool: str) -> None:
        self._api, self._pool = api, pool
        self.devices: tuple[MockDevice, ...] = ()

    async def NodePrepareResources(
        self, request: pb.NodePrepareResourcesRequest, context: Context
    ) -> pb.NodePrepareResourcesResponse:
        answers = await asyncio.gather(*(self._prepare(claim) for claim in request.claims))
        return pb.NodePrepareResourcesResponse(
            claims={claim.uid: answer for claim, answer in zip(request.claims, answers, strict=True)}
        )

    async def NodeUnprepareResources(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        for claim in request.claims:
            note(log, "unprepared", namespace=claim.namespace, claim=claim.name, uid=claim.uid)
        return pb.NodeUnprepareResourcesResponse(
            claims={claim.uid: pb.NodeUnprepareResourceResponse() for claim in request.claims}
        )

    async def _prepare(self, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        try:
            found = await self._api.claim(claim.namespace, claim.name)
            prepared = claims.prepare(found, claim.uid, self._pool, self.devices)
        except (ApiTrouble, CannotPrepare) as error:
            note(
                log, "not prepared", logging.WARNING, namespace=claim.namespace, claim=claim.name, error=str(error)
            )  # fmt: skip
            return pb.NodePrepareResourceResponse(error=str(error))
        note(
            log, "prepared", namespace=claim.namespace, claim=claim.name, uid=claim.uid,
            devices=[one.device for one in prepared],
        )  # fmt: skip
        return pb.NodePrepareResourceResponse(
            devices=[
                pb.Device(
                    request_names=[one.request], pool_name=one.pool, device_name=one.device,
                    cdi_device_ids=[one.cdi_name],
                )
                for one in prepared
            ]
        )  # fmt: skip


class RegistrationService(registration_grpc.RegistrationServicer):
    """Tells the kubelet, which finds the socket by itself, also after its restart, what it has found."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    async def GetInfo(self, request: registration_pb.InfoRequest, context: Context) -> registration_pb.PluginInfo:
        return registration_pb.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=self._endpoint, supported_versions=[SERVICE]
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb.RegistrationStatus, context: Context
    ) -> registration_pb.RegistrationStatusResponse:
        if request.plugin_registered:
            note(log, "registered", driver=DRIVER)
        else:
            note(log, "not registered", logging.ERROR, error=request.error)
        return registration_pb.RegistrationStatusResponse()


async def serve(folders: NodeFolders, api: ApiServer, node: str, on_published: Callable[[], None]) -> None:
    """Serve until cancelled; `on_published` is called whenever the slice has been found right.

    The slice stays when it ends: the kubelet removes it if no successor comes within 30 s.
    """
    folder = folders.plugins / DRIVER
    folder.mkdir(parents=True, exist_ok=True)
    service, publisher = DraService(api, node), Publisher(api, node, on_published)
    endpoint = folder / DRA_SOCKET

    def add_services(server: grpc.aio.Server) -> None:
        pb_grpc.add_DRAPluginServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        registration_grpc.add_RegistrationServicer_to_server(  # type: ignore[no-untyped-call]
            RegistrationService(str(endpoint)), server
        )

    async def feed() -> None:
        async for mock in offers.follow(folders):
            service.devices = mock.devices
            publisher.want(mock)

    async with served([endpoint, folders.plugin_registry / REGISTRATION_SOCKET], add_services):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(feed(), name="devices")
            tasks.create_task(publisher.run(), name="slice")
