"""The page on parity: every row is whole, says which form of messages it is about, names pages that exist, and has a
test for each form. `tests/unit/test_evidence.py` is about the tests themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "parity.md"
OPEN = "**open**"
FORMS = ("topics", "message tables", "key spaces", "queues")
MEANT = {"V": FORMS[:2], "R": FORMS[:1], "S": (), "K": ("key spaces",), "Q": ("queues",)}
"""The forms that a row is about that names none; those of the kind S name them."""
FORM = re.compile(rf"(?:^|; )({'|'.join(FORMS)}): ")
VERDICT = re.compile(r"holds|differs: [\w`].*|\*\*open\*\*: \w.*")


class Row(NamedTuple):
    """One statement."""

    id: str
    statement: str
    here: str
    pages: str
    test: str


def rows() -> list[Row]:
    """The rows of all tables, without their heads. Fails on one that has not all cells."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|") or line.startswith(("| | statement |", "|---")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == len(Row._fields), line
        found.append(Row(*cells))
    return found


def verdicts(row: Row) -> list[tuple[str, str]]:
    """What a row says of each form that it is about."""
    before, *named = FORM.split(row.here)
    if before:
        return [(form, row.here) for form in MEANT[row.id[0]]]
    return list(zip(named[::2], named[1::2], strict=True))


def test_every_row_is_whole_and_its_number_is_its_own() -> None:
    found = rows()
    assert len(found) > 230
    assert all(all(row) for row in found)
    assert [row.id for row in found if not re.fullmatch(r"[VRSKQ][1-9]\d*", row.id)] == []
    for kind in MEANT:
        numbers = [int(row.id[1:]) for row in found if row.id.startswith(kind)]
        assert numbers == list(range(1, len(numbers) + 1)), kind


def test_every_row_says_of_which_forms_it_holds() -> None:
    said = {row.id: verdicts(row) for row in rows()}
    assert [number for number, forms in said.items() if not forms] == []
    assert [number for number, forms in said.items() if len(dict(forms)) != len(forms)] == []
    assert [
        number for number, forms in said.items() if not all(VERDICT.fullmatch(one) for _, one in forms)
    ] == []


def test_every_form_has_a_test_of_its_own() -> None:
    closed = [row for row in rows() if not row.here.startswith(OPEN)]
    wanted = {row.id: [form != "topics" for form, _ in verdicts(row)] for row in closed}
    found = {row.id: ["outbox" in test for test in row.test.split(", ")] for row in closed}
    assert {number: found[number] for number in wanted if wanted[number] != found[number]} == {}


def test_every_page_exists() -> None:
    """And nothing but pages is named beside a test: code moves, and the tests find it."""
    named = {row.id: row.pages.split(", ") for row in rows() if row.pages != "–"}
    assert len(named) > 150
    links = {
        number: [re.fullmatch(r"\[[\w-]+\]\(([\w/-]+\.md)\)", one) for one in found]
        for number, found in named.items()
    }
    assert [number for number, found in links.items() if not all(found)] == []
    paths = {found[1] for several in links.values() for found in several if found}
    assert [path for path in paths if not (PAGE.parent / path).is_file()] == []


def test_nothing_is_open() -> None:
    assert [row.id for row in rows() if row.here.startswith(OPEN)] == []
