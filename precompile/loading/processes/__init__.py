"""What a process that loads data does for itself: one thread per library, and signs of what it is doing."""
