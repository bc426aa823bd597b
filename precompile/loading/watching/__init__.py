"""A loader that stalls says why, and raises, instead of waiting for ever."""
