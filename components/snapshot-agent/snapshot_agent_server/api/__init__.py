"""The gRPC edge: checks what comes in, speaks protobuf, and hands our own types to the shell."""
