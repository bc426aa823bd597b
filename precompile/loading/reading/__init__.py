"""From sample numbers to tensors, by copies of memory."""
