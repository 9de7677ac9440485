"""Makes `rocketmq.binpb` of `rocketmq.proto`, when that has changed: python -m tests.support.rocketmq.schema"""

from __future__ import annotations

import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[3] / "gateway/tickwheel_gateway/wire/rocketmq.proto"
COMPILED: Final = SOURCE.with_suffix(".binpb")


def compiled() -> bytes:
    """The schema with all that it includes, as protoc writes it."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder, resources.as_file(resources.files("grpc_tools")) as tools:
        made = Path(folder, COMPILED.name)
        arguments = [
            f"-I{SOURCE.parent}",
            f"-I{tools / '_proto'}",
            "--include_imports",
            f"--descriptor_set_out={made}",
        ]
        if code := protoc.main(["protoc", *arguments, SOURCE.name]):
            raise SystemExit(code)
        return made.read_bytes()


if __name__ == "__main__":
    COMPILED.write_bytes(compiled())
