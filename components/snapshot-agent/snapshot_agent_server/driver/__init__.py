"""The CUDA driver and NVML, in worker processes that can be killed when a call hangs."""
