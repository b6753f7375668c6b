"""`python -m colibri.cli`: the command `coli` without its console script."""

from colibri.cli import main

main()
