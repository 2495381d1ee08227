"""The client's face for asyncio: tasks that send and wait. Decisions are in `_core`."""
