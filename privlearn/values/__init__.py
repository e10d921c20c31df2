"""Exact numbers, steps of a grid, ranges of users, neighbour relations, JSON forms and checks of parameters."""
