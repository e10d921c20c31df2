"""Simulated users and markets."""
