"""Engines: the bytes of one file -> one array. One module per engine, with `make(recipe) -> Engine`."""
