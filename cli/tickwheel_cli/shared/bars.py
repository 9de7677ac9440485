"""A bar of text."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(value: int, largest: int, width: int) -> str:
    """A bar to an eighth of a character, in proportion to `largest`; anything above 0 is visible."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(1, round(value / largest * width * 8))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
