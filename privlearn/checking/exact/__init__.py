"""Exact divergences of mechanisms, from their laws instead of samples."""
