"""Decides, and does nothing: events in, effects out. Imports the standard library only; no asyncio, no clock."""
