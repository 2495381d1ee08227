"""The gRPC server around the service: addresses, limits, keepalive, health."""

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from orchestrator.addresses import CannotListen, prepare
from orchestrator.api.server import OrchestratorService
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2 as pb
from timeslice_orchestrator.v1alpha1 import orchestrator_pb2_grpc as pb_grpc

MAX_PENDING_CALLS = 100_000
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["TimeSliceOrchestratorService"].full_name


def _options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        # Of more calls than this that come at once, gRPC would cancel some without a reason (its own limit is 1,000): a
        # thousand jobs that all find their orchestrator again after a restart.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
        ("grpc.so_reuseport", 0),  # else a second server on the same port starts without a word
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
    ]


class Listener:
    """Serves one service on some addresses."""

    def __init__(self, service: OrchestratorService, addresses: Sequence[str], max_message_bytes: int) -> None:
        """Bind the addresses; CannotListen names the first that cannot be. Nothing is answered before `start`."""
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_options(max_message_bytes))
        pb_grpc.add_TimeSliceOrchestratorServiceServicer_to_server(  # type: ignore[no-untyped-call]
            service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.addresses: list[str] = []
        """What is served; a port that was given as 0 shows as the one that was chosen."""
        for address in addresses:
            prepare(address)
            try:
                port = self._server.add_insecure_port(address)
            except RuntimeError as error:
                raise CannotListen(
                    f"cannot listen on {address!r}; is it in use? Stop that process or choose another --listen"
                ) from error
            host = address.rpartition(":")[0]
            self.addresses.append(address if address.startswith("unix:") else f"{host}:{port}")

    async def start(self) -> None:
        """Answer calls from now on."""
        for name in ("", SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def say_not_serving(self) -> None:
        """Health checks answer NOT_SERVING from now on."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Stop; calls in progress have this long to end."""
        await self._server.stop(grace_s)
