"""Data sets that ship with privlearn, and readers of published and of user files."""
