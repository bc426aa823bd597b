"""Which samples are read, in which order, in which batches, by which process."""
