"""Submitting on the bus, without REST: the input goes to Redis, the packet to NATS.

    . .airlock/dev.env
    python examples/python/submit.py job.text.count '{"text": "one two three"}'

Prints the job's id. The job is in the ledger a moment later, under the same rules as one
that came over REST; `airlock job watch ID` follows it.
"""

import asyncio
import json
import os
import sys
import uuid

import nats
import redis.asyncio as redis

from cap.client import submit_job
from cap.pb.cordum.agent.v1 import job_pb2


async def main(topic: str, payload: str) -> None:
    json.loads(payload)  # Better told here than in a dead letter.
    job_id = str(uuid.uuid4())
    store = redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))
    # Airlock copies it when it accepts the job; an hour is plenty.
    await store.set(f"ctx:{job_id}", payload, ex=3600)
    await store.aclose()
    connection = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    request = job_pb2.JobRequest(
        job_id=job_id, topic=topic, context_ptr=f"redis://ctx:{job_id}"
    )
    await submit_job(connection, request, trace_id=uuid.uuid4().hex, sender_id="example")
    await connection.drain()
    print(job_id)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], sys.argv[2]))
