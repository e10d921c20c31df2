"""Exact divergences of mechanisms, from their output distributions instead of samples."""
