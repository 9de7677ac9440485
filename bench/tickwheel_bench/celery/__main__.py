"""``python -m tickwheel_bench.celery``."""

import sys

from tickwheel_bench.celery.comparison import main

sys.exit(main())
