"""Asks a broker how it is, as a load balancer and Prometheus do. Run: python examples/watching.py (needs
pip install 'tickwheel[server]')
"""

from __future__ import annotations

import json
import socket
import tempfile
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

import tickwheel


def get(url: str) -> str:
    """The text of a page."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def free_port() -> int:
    """One that is free just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory() as directory,
        tickwheel.embedded(directory, http_listen=True, http_port=port) as broker,
        broker.sync_client() as client,
    ):
        client.send_many("letters", [b"dear Ada"] * 100)
        with client.subscribe("letters") as subscription:
            for number, message in enumerate(subscription, 1):
                message.ack()
                if number == 60:
                    break
            subscription.flush()
            print("alive:", get(f"{url}/livez").strip())
            print("ready:", json.loads(get(f"{url}/readyz"))["ready"])
            values = {
                sample.name: sample.value
                for family in text_string_to_metric_families(get(f"{url}/metrics"))
                for sample in family.samples
                if sample.labels.get("topic") == "letters" or not sample.labels
            }
    for name in ("messages_accepted_total", "messages_acked_total", "backlog_messages", "connections"):
        print(f"tickwheel_{name}: {values[f'tickwheel_{name}']:g}")
    print("late messages counted:", f"{values['tickwheel_delivery_lateness_seconds_count']:g}")


if __name__ == "__main__":
    main()
