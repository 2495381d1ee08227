"""What the client decides, as data: nothing in here waits, sends, reads a clock or imports grpc.

`calls` (when to send, repeat and give up), `leases` (what this client holds), `sessions` (what keeps leases alive).
The shells (`_sync` now, an asyncio twin beside it) send and wait, and take no decision.
"""
