"""Sizes in bytes as people read them."""


def format_bytes(size_bytes: float) -> str:
    """`812 bytes`, `64.0 KiB`, `1.2 GiB`."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size_bytes /= 1024
        if size_bytes < 1023.95:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} TiB"
