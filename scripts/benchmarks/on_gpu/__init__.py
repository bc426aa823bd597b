"""What `gpu_check.py` checks and measures: one module per question, and what they share."""
