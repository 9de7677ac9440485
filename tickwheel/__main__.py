"""``python -m tickwheel``: the same as the ``tickwheel`` command."""

from tickwheel_cli.main import main

main()
