"""One call of grpc's asyncio side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timeslice._aio.changed import Changed


async def ends(call: Any, changed: Changed, is_over: Callable[[], bool]) -> bool:
    """Wait until the call has ended, with a reply or an error; False if `is_over` came first, or it was cancelled.

    However this is left, the call is over: nobody is to grant what nobody waits for. To await the call itself would
    raise CancelledError also when somebody else closes the channel, and then nobody has cancelled this task.
    """
    call.add_done_callback(lambda _: changed.notify_all())
    try:
        await changed.wait_for(lambda: call.done() or is_over())
        return bool(call.done() and not call.cancelled())
    finally:
        call.cancel()
