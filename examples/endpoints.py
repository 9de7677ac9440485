"""Endpoints for the messages of a topic, HTTP tasks, and a schedule of tasks: what `tickwheel push` will call.

Run: python examples/endpoints.py
"""

import tempfile
from datetime import timedelta

import anyio

import tickwheel
from tickwheel.errors import EndpointChanged, UrlNotAllowed


async def main() -> None:
    """A shop is told of its orders; tasks call what an allow-list allows, once or every night."""
    with tempfile.TemporaryDirectory() as directory:
        async with tickwheel.embedded(directory) as broker, broker.client() as client:
            shop = await client.set_endpoint("shop", topic="orders", url="https://shop.example/hooks")
            print("the broker made a secret:", shop.secrets[0].startswith("whsec_"))
            try:
                await client.set_endpoint("shop", rate=5, expected_version=0)
            except EndpointChanged:
                print("there is one already")
            await client.send("orders", b'{"order": 17}')

            await client.set_endpoint(
                "tasks", topic="http-tasks", allow_urls=["https://*.shop.example/jobs/*"]
            )
            await client.send_http_task("https://eu.shop.example/jobs/renew", b"7", delay=timedelta(days=30))
            await client.send_http_task("https://eu.shop.example/jobs/remind", b"7", method="PUT")
            try:
                await client.send_http_task("https://elsewhere.example/")
            except UrlNotAllowed as error:
                print(error.message)

            headers = tickwheel.task_headers("https://eu.shop.example/jobs/clean", method="DELETE")
            await client.create_schedule("clean", "http-tasks", cron="0 3 * * *", headers=headers)

            for endpoint in await client.endpoints():
                fetched = await client.fetch(endpoint.topic, endpoint.group, wait=timedelta(seconds=20))
                for message in fetched:  # as tickwheel push does
                    url = endpoint.url or message.headers["tickwheel-url"]
                    print(endpoint.name, "is to be sent", message.body.decode(), "at", url)
            print("not done with:", await client.delete_endpoint("shop"))


if __name__ == "__main__":
    anyio.run(main)
