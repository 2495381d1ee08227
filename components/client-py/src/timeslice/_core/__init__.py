"""What the client decides, as data: nothing in here waits, sends, reads a clock or imports grpc.

`client` plans each call of the user (the steps are in `steps`), out of `calls` (when to send, repeat and give up),
`leases` (what this client holds), `sessions` and `keeping` (what keeps leases alive) and `contact` (whether the
orchestrator answers). The shells (`_sync` and `_aio`) send and wait, and take no decision.
"""
