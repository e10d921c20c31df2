"""Data sets that ship with privlearn; see README.md beside this file."""
