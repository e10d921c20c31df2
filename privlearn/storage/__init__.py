"""Files, locks and sockets that a kill, a fork or a second process cannot break."""
