"""``python -m tickwheel_bench``."""

import sys

from tickwheel_bench import main

sys.exit(main(sys.argv[1:]))
