"""A worker as a user of the public SDK writes one: nothing in it knows of Airlock.

Settings come from the environment: NATS_URL and REDIS_URL (read by the SDK itself),
WORKER_ID (the SDK's default when absent), POOL, MAX_PARALLEL, TOPICS (all when absent),
JOURNAL (a file that gets one line for each run), PRIVATE_KEY and SCHEDULER_KEY with
SCHEDULER_ID (signing and verifying, PEM files).
"""

import asyncio
import os
import signal
import time

from cap.runtime import Agent, Context
from cryptography.hazmat.primitives import serialization


def options() -> dict:
    found = {}
    if os.environ.get("WORKER_ID"):
        found["worker_id"] = os.environ["WORKER_ID"]
    if os.environ.get("POOL"):
        found["pool"] = os.environ["POOL"]
    if os.environ.get("MAX_PARALLEL"):
        found["max_parallel"] = int(os.environ["MAX_PARALLEL"])
    if os.environ.get("PRIVATE_KEY"):
        with open(os.environ["PRIVATE_KEY"], "rb") as pem:
            found["private_key"] = serialization.load_pem_private_key(pem.read(), None)
    if os.environ.get("SCHEDULER_KEY"):
        with open(os.environ["SCHEDULER_KEY"], "rb") as pem:
            key = serialization.load_pem_public_key(pem.read())
        found["public_keys"] = {os.environ["SCHEDULER_ID"]: key}
    return found


def journal(ctx: Context) -> None:
    """One line for each run, written at once: what really ran, whatever others say."""
    path = os.environ.get("JOURNAL")
    if not path:
        return
    line = f"{ctx.job_id} {ctx.trace_id} {os.getpid()}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


async def echo(ctx: Context, data):
    journal(ctx)
    return data


async def sleep(ctx: Context, data):
    journal(ctx)
    print(f"sleeping {ctx.job_id}", flush=True)
    await asyncio.sleep(data["ms"] / 1000)
    return {"slept": data["ms"]}


async def fail(ctx: Context, data):
    journal(ctx)
    raise RuntimeError("on purpose")


HANDLERS = {"job.cap.echo": echo, "job.cap.sleep": sleep, "job.cap.fail": fail}


async def main() -> None:
    agent = Agent(**options())
    topics = os.environ.get("TOPICS", ",".join(HANDLERS)).split(",")
    for topic in topics:
        agent.job(topic)(HANDLERS[topic])
    begun = time.time()
    await agent.start()
    print(f"started {begun:.6f}", flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await agent.close()
    print("closed", flush=True)


asyncio.run(main())
