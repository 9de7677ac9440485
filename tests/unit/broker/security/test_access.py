"""The tokens of a broker as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.native.driver import NOW_MS
from tests.unit.broker.security.test_tokens import record, save
from tickwheel_broker.clock.clock import SystemClock
from tickwheel_broker.security.access import Access


async def test_fingerprints_are_equal_where_the_tokens_are(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    here, there = Access(SystemClock(), one), Access(SystemClock(), two)
    assert Access(SystemClock()).fingerprint() == "", "there will never be any"
    seen = [here.fingerprint()]
    assert there.fingerprint() == seen[0] != ""
    save(one, record(1), record(2))
    seen.append(here.fingerprint())
    save(two, record(2), record(1))
    assert there.fingerprint() == seen[1], "the order of the file tells nothing"
    save(one, record(2, revoked_ms=NOW_MS))
    seen.append(here.fingerprint())
    assert len(set(seen)) == 3
    shutil.copy(one, two)
    assert there.fingerprint() == seen[2]
    one.write_text("{")
    assert here.fingerprint() == seen[2], "what cannot be read is not used"
