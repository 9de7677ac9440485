"""What a task notes: when it was due, and when it ran; epoch seconds."""

from __future__ import annotations

import struct
from typing import Final

RECORD: Final = struct.Struct("<dd")
