"""Container images without a container engine: layers from Debian packages, wheels and files, and their SBOM."""
