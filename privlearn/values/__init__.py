"""Exact numbers, steps of a grid, ranges of users, neighbour relations, checks of parameters."""
