"""The protocol between the devices and the server of a local bandit."""
