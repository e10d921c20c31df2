"""Reproductions of papers, the rivals that only they use, their data and their simulators."""
