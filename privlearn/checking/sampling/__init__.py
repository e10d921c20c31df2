"""Lower bounds on privacy loss from samples of anything."""
