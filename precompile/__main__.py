"""`python -m precompile`: the command line, where its script is not on PATH."""

from precompile.cli.main import main

main()
