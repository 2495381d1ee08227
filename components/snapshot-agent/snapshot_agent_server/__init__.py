"""The snapshot agent: saves and restores the device memory of jobs on one node."""
