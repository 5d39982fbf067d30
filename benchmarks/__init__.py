"""Benchmarks: `python -m benchmarks.<name> [--quick]` prints a table and writes benchmarks/results/<name>.json."""
