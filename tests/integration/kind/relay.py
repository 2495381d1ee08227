"""relay.py SOCKET PORT: what comes to a unix socket goes to 127.0.0.1:PORT, in whatever network namespace this runs.

A cluster on podman lives in a network namespace of its own, and files are all that it shares with the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve(path: str, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await asyncio.start_unix_server(connected, path)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
