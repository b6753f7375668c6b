"""Benchmarks: measured side by side with a peer and against the machine's own limits.

Run by `make bench` (`python -m tests.perf.run`), never by `make test`; only the arithmetic in
`rows.py` has a unit test. `docs/benchmarks.md` says what every row means.
"""
