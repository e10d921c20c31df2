"""Faults planted in the source of this package, which the checks must find."""
