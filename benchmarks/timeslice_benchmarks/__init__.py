"""What the product costs in time and memory, measured; see docs/performance.md."""
