"""A worker in Python, on the public SDK of the agent protocol.

    . .airlock/dev.env            # NATS_URL and REDIS_URL of ./dev up
    python examples/python/worker.py
"""

import asyncio
import os
import socket

from pydantic import BaseModel

from cap.runtime import Agent, Context

# Each process needs an id of its own: by it Airlock knows what a process that died was
# running. Processes that share one are served too, but their jobs wait for a timeout.
agent = Agent(
    worker_id=f"words-{socket.gethostname()}-{os.getpid()}",
    max_parallel=8,
)


class Text(BaseModel):
    text: str


class Count(BaseModel):
    words: int
    longest: str


@agent.job("job.text.count", input_model=Text, output_model=Count)
async def count(ctx: Context, data: Text) -> Count:
    words = data.text.split()
    ctx.logger.info("counting %d words", len(words))
    return Count(words=len(words), longest=max(words, key=len, default=""))


@agent.job("job.text.shout")
async def shout(ctx: Context, data):
    # It may run again when this process is killed: keep ctx.job_id with whatever you do
    # to the world, so that doing it twice is noticed.
    return {"text": data["text"].upper()}


if __name__ == "__main__":
    asyncio.run(agent.run())
