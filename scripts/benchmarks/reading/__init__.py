"""What `read.py` measures: one module per kind of case, and what they share."""
