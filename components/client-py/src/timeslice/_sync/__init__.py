"""The blocking shell of the client: it sends and waits. Decisions are in `_core`.

`contact` (is the orchestrator there), `calls` (one call over its attempts), `sessions` (the background thread).
"""
