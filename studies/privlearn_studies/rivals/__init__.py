"""Rivals and references of the learners: published baselines and players without privacy."""
