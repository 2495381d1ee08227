"""Clusters for tests and development: kind on Docker, or on podman with a node image that is built here."""
