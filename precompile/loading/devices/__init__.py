"""Batches on the device that trains."""
