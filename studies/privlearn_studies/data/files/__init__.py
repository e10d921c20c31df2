"""Data sets that ship with the studies; see README.md beside this file."""
