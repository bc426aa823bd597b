"""Processes that make batches in shared memory, for transforms in Python."""
