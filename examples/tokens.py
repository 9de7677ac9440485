"""Lets a shop send orders and nothing else, then takes that back. Run: python examples/tokens.py"""

import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

import tickwheel

TICKWHEEL = Path(sys.executable).with_name("tickwheel")


def tokens(directory: str, *arguments: str) -> str:
    """What an operator types; the broker notices within a second."""
    command = [TICKWHEEL, "tokens", *arguments, "--data", directory]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


async def main() -> None:
    """Uses a token for what it allows, for something else, and after it was revoked."""
    with tempfile.TemporaryDirectory() as directory:
        token = tokens(directory, "create", "shop", "--grant", "publish:orders.*")
        async with tickwheel.embedded(directory) as broker, broker.client(token=token) as shop:
            sent = await shop.send("orders.new", b"17")
            print("sent:", sent.id)
            try:
                await shop.send("mails", b"buy now")
            except tickwheel.errors.Forbidden as error:
                print(error.message.partition(") ")[2])
            tokens(directory, "revoke", "shop", "--yes")
            try:
                while True:
                    await shop.ping()
            except tickwheel.errors.TokenRevoked as error:
                print(error.message)


if __name__ == "__main__":
    anyio.run(main)
