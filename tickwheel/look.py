"""How our pages look: the style sheet that the dashboard and the report of Spark have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOOK: Final = Path(__file__).with_name("look.css")
"""Colours, light and dark, as custom properties; and how figures, tables, charts and results are shown."""
