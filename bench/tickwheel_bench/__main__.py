"""``python -m tickwheel_bench``."""

import sys

import click

from tickwheel_bench import main

try:
    sys.exit(main(sys.argv[1:]))
except click.ClickException as error:
    error.show()
    sys.exit(error.exit_code)
