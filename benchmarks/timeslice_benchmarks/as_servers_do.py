"""Importing this sets gRPC up as our servers do; a fake agent stands for one. Import it before grpc."""

import os

from orchestrator import grpc_polling

grpc_polling.choose(os.environ)
