"""A receiver that verifies what `tickwheel push` sends. Run: python examples/webhook_receiver.py (needs
pip install 'tickwheel[push]')

Broker, push and receiver run here together; usually the receiver is somebody else's, in any language, and libraries for
Standard Webhooks do what `is_genuine` does.
"""

import base64
import hashlib
import hmac
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from queue import Queue
from urllib.request import Request, urlopen

import tickwheel
from tickwheel import sync

SECRET = "whsec_" + base64.b64encode(b"a secret that only both of us know").decode()
TOLERANCE_S = 300
"""A request that is older is one that somebody repeats."""


def is_genuine(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether it was signed with our secret, lately. There is a signature for each secret that is in use."""
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(wanted, one) for one in given)


class Receiver(HTTPServer):
    """Takes each message once, whatever is delivered again."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: set[str] = set()
        self.told: Queue[str] = Queue()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Receiver

    def do_POST(self) -> None:
        """200: taken, now or before. 503: please again, later. 401: not from us."""
        body = self.rfile.read(int(self.headers["content-length"]))
        message_id, attempt = self.headers["webhook-id"], self.headers["tickwheel-attempt"]
        if not is_genuine(self.headers, body):
            status, said = 401, "forged: refused"
        elif message_id in self.server.seen:
            status, said = 200, f"{body.decode()}: taken before"
        elif attempt == "1":
            status, said = 503, f"{body.decode()}: not now"
        else:
            self.server.seen.add(message_id)
            status, said = 200, f"{body.decode()}: taken, attempt {attempt}"
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()
        self.server.told.put(said)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def main() -> None:
    """An order is told to its receiver when it is due."""
    with tempfile.TemporaryDirectory() as directory, Receiver() as receiver:
        port = receiver.server_address[1]
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        with tickwheel.embedded(directory) as broker, sync.Client(broker.url) as client:
            url = f"http://127.0.0.1:{port}/hooks"
            client.set_endpoint(
                "shop", topic="orders", url=url, secrets=[SECRET], retry_delays=[timedelta(milliseconds=200)]
            )
            client.send("orders", b"order 17", delay_ms=200)
            # What it may call by itself is https on public addresses; this machine has to be allowed.
            allow = ["--allow-http", "--allow-network", "127.0.0.0/8", "--port", str(port)]
            command = [sys.executable, "-m", "tickwheel", "--url", broker.url, "push", *allow]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as push:
                print(receiver.told.get(timeout=60))
                print(receiver.told.get(timeout=60))
                push.terminate()
            forged = Request(url, b"order 18", {"webhook-id": "msg_1", "webhook-timestamp": "1"})
            try:
                urlopen(forged)
            except OSError:
                print(receiver.told.get(timeout=60))
        receiver.shutdown()


if __name__ == "__main__":
    main()
