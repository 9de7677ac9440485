"""The garbage collector, which stops everything else while it is at work."""

from __future__ import annotations

import gc


def spare_collector() -> None:
    """Take what start-up has made out of the garbage collector's sight.

    Otherwise it walks through all of it now and then, for 20 ms and more. Nothing is delivered or answered meanwhile.
    """
    gc.collect()
    gc.freeze()
