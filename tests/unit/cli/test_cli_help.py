"""The `--help` texts are those that were recorded: a change of one is made on purpose."""

from __future__ import annotations

from pathlib import Path

from tests.support.run.help_texts import HEADING, page

RECORDED = Path(__file__).resolve().parents[2] / "recorded" / "help_texts.txt"


def sections(text: str) -> list[str]:
    return f"\n{text}".split(f"\n{HEADING}")


def test_every_help_text_is_as_recorded() -> None:
    """Byte for byte. `tests/support/run/help_texts.py` says how to record them anew."""
    recorded, shown = sections(RECORDED.read_text(encoding="utf-8")), sections(page())
    assert len(recorded) > 90
    assert [section.partition("\n")[0] for section in shown] == [s.partition("\n")[0] for s in recorded]
    assert shown == recorded
