"""Declared lists of private runs, priced without running them."""
