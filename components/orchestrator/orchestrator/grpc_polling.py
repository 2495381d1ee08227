"""Which of gRPC's ways to wait for the network a server of ours uses."""

from collections.abc import MutableMapping
from importlib.metadata import PackageNotFoundError, version

VARIABLE = "GRPC_EXPERIMENTS"
FEWER_THREADS = "-event_engine_client,-event_engine_listener"
KNOWN_FROM, KNOWN_BELOW = (1, 81), (1, 86)
"""gRPC's versions that know both names; others would complain on stderr."""


def choose(environment: MutableMapping[str, str], grpc_version: str | None = None) -> None:
    """Let gRPC read sockets in the thread that hands what came to asyncio. Call it before grpc is imported.

    By default it comes through two threads of an engine more. Seen with grpcio 1.85.3 on 2 cores: a server's threads
    sleep 6 times per call and not 12, one call after a pause takes 1.0 ms and not 1.5, and an orchestrator needs a
    sixth less CPU time per handoff. What the user has set stands.

    Args:
        grpc_version: None: the installed one.
    """
    try:
        found = tuple(int(part) for part in (grpc_version or version("grpcio")).split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return
    if KNOWN_FROM <= found < KNOWN_BELOW:
        environment.setdefault(VARIABLE, FEWER_THREADS)
