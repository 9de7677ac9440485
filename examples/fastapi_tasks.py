"""A FastAPI application that leaves work for later to Taskiq. Run: python examples/fastapi_tasks.py
(needs pip install 'tickwheel[taskiq]' fastapi httpx)

Usually the broker is `tickwheel serve`, the application runs under uvicorn, and the tasks in `taskiq worker`. Here all
of them are in one program, on a broker whose clock is moved: a trial of 14 days ends at once.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request
from taskiq.receiver import Receiver

from tickwheel import testing
from tickwheel.taskiq import TickwheelBroker

TRIAL = timedelta(days=14)
PATIENCE_S = 60


class Shop:
    """The tasks, and what they have done."""

    def __init__(self, url: str) -> None:
        self.broker = TickwheelBroker(url, topic="trials")
        self.ended: list[str] = []  # a database, in earnest

        @self.broker.task
        async def end_trial(name: str) -> None:
            self.ended.append(name)

        self.end_trial = end_trial


def shop_of(request: Request) -> Shop:
    """A dependency: what handlers that send tasks ask for. A test may override it."""
    shop: Shop = request.app.state.shop
    return shop


Tasks = Annotated[Shop, Depends(shop_of)]


def application(url: str) -> FastAPI:
    """Trials below /trials."""
    shop = Shop(url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # In `taskiq worker`, which imports the application for its tasks, the worker does it.
        if not shop.broker.is_worker_process:
            await shop.broker.startup()
        yield
        if not shop.broker.is_worker_process:
            await shop.broker.shutdown()

    app = FastAPI(lifespan=lifespan)
    app.state.shop = shop

    @app.put("/trials/{name}", status_code=202)
    async def begin(name: str, tasks: Tasks) -> dict[str, str]:
        # A second request for the same name stores nothing: the key is there.
        wanted = tasks.end_trial.kicker().with_labels(delay=TRIAL.total_seconds(), key=f"trial-{name}")
        await wanted.kiq(name)
        return {"trial": name, "ends": "in 14 days"}

    @app.delete("/trials/{name}")
    async def convert(name: str, tasks: Tasks) -> dict[str, str]:
        result = await tasks.broker.cancel(f"trial-{name}")
        if result != "cancelled":
            raise HTTPException(404 if result == "not_found" else 409, result)
        return {"trial": name, "ends": "never"}

    return app


@asynccontextmanager
async def worker(broker: TickwheelBroker) -> AsyncIterator[None]:
    """What `taskiq worker` runs."""
    finish = asyncio.Event()
    with ThreadPoolExecutor(1) as pool:
        receiver = Receiver(broker, pool, max_async_tasks=10, run_startup=False)
        running = asyncio.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await running


async def use(server: testing.TestBroker) -> None:
    """Two trials, of which one customer stays."""
    app = application(server.url)
    shop: Shop = app.state.shop
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as http,
        worker(shop.broker),
    ):
        for name in ("ada", "bob", "bob"):
            print("begin:", (await http.put(f"/trials/{name}")).json()["ends"])
        print("ada stays:", (await http.delete("/trials/ada")).json()["ends"])
        print("carol:", (await http.delete("/trials/carol")).status_code)
        await server.advance(TRIAL)
        async with asyncio.timeout(PATIENCE_S):
            while not shop.ended:
                await asyncio.sleep(0.01)
        print("ended:", shop.ended)
        print("bob, too late:", (await http.delete("/trials/bob")).status_code)


def main() -> None:
    """The broker of a test, and what uses it."""
    with testing.broker() as server:
        asyncio.run(use(server))


if __name__ == "__main__":
    main()
