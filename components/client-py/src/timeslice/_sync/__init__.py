"""The client's face for ordinary code: threads that send and wait. Decisions are in `_core`."""
