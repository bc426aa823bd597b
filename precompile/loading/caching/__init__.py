"""A compiled dataset on a RAM disk: staged once per host, shared by every process, dropped when nobody needs it."""
