"""HTTP for a broker, with the standard library as its client. Run: python examples/http_api.py (needs
pip install 'tickwheel[web]')

Broker and API run inside this process; usually they are `tickwheel serve` and `tickwheel web`, and the client is in any
language.
"""

import json
import socket
import tempfile
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import uvicorn

import tickwheel
import tickwheel.web


def ask(method: str, url: str, fields: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """One request; every status is an answer."""
    body = None if fields is None else json.dumps(fields).encode()
    request = Request(url, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request) as answer:
            return answer.status, json.load(answer)
    except HTTPError as problem:
        with problem:
            return problem.code, json.load(problem)


def use(api: str) -> None:
    """Sends, looks, cancels."""
    reminders = f"{api}/v1/topics/reminders"
    tea = {"text": "tea is ready", "delay": "4m", "key": "tea"}
    status, sent = ask("POST", f"{reminders}/messages", tea)
    print(f"sent: {status}")
    status, again = ask("POST", f"{reminders}/messages", tea)
    print(f"sent again: {status}, duplicate: {again['duplicate']}")
    print("it is:", ask("GET", f"{api}/v1/messages/{sent['id']}")[1]["state"])
    print("cancel:", ask("DELETE", f"{reminders}/keys/tea")[1]["result"])
    status, problem = ask("POST", f"{reminders}/messages", {"text": "x", "deliver_at": "2031-05-01T09:00:00"})
    print(f"naive: {status}, {problem['code']}")


def main() -> None:
    """A broker, HTTP for it, and its client."""
    with (
        tempfile.TemporaryDirectory() as directory,
        tickwheel.embedded(directory, listen_tcp=True, listen_port=0, unix_socket="") as broker,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        app = tickwheel.web.app(broker.url)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", lifespan="on"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            use(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main()
