"""From positions in a dataset to jobs that make batches."""
