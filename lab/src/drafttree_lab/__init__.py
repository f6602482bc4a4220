"""Benchmarks and replays for developers of drafttree; entry points add its commands to `drafttree`."""
