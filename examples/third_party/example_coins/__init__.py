"""An example of a package that privlearn finds by its entry points: answers told by coins."""
