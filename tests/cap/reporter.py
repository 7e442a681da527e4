"""A worker that says how far it is, on the public SDK's own helper and, for what the
helper cannot say, with the protocol's message itself. Nothing in it knows of Airlock.
"""

import asyncio
import os

import nats
import redis.asyncio as redis
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from cap.progress import emit_progress, progress_payload
from cap.runtime import Agent, Context
from google.protobuf import timestamp_pb2

WORKER = "py-reporter"


async def main() -> None:
    connection = await nats.connect(os.environ["NATS_URL"])
    store = redis.from_url(os.environ["REDIS_URL"])
    agent = Agent(worker_id=WORKER)

    @agent.job("job.cap.report")
    async def report(ctx: Context, data):
        await emit_progress(
            connection, progress_payload(WORKER, ctx.job_id, "resize", 40, "resized")
        )
        if data["whole"]:
            await store.set(f"res:{ctx.job_id}:partial:1", '{"words": 2}')
            now = timestamp_pb2.Timestamp()
            now.GetCurrentTime()
            packet = buspacket_pb2.BusPacket(
                trace_id=ctx.trace_id,
                sender_id=WORKER,
                created_at=now,
                protocol_version=1,
                job_progress=job_pb2.JobProgress(
                    job_id=ctx.job_id,
                    percent=70,
                    result_ptr=f"redis://res:{ctx.job_id}:partial:1",
                    artifact_ptrs=["redis://art:one", "s3://bucket/two"],
                ),
            )
            await emit_progress(connection, packet.SerializeToString())
        await connection.flush()
        while await store.get("go-on") is None:
            await asyncio.sleep(0.05)
        return {"done": True}

    await agent.start()
    print("started", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
