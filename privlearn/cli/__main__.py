"""``python -m privlearn.cli``."""

from privlearn.cli.main import main

main()
