"""Whole runs behind `privlearn run`."""
