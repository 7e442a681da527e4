"""A worker on the SDK's low-level helper: it subscribes to a topic and answers, and says
nothing of itself. Without WORKER_ID it goes by the helper's default id.
"""

import asyncio
import os

from cap.pb.cordum.agent.v1 import job_pb2
from cap.worker import run_worker

failed_once = set()


async def handle(request: job_pb2.JobRequest) -> job_pb2.JobResult:
    with open(os.environ["JOURNAL"], "a", encoding="utf-8") as journal:
        journal.write(f"{request.job_id} {request.dispatch.attempt} {os.getpid()}\n")
    # What the high-level Agent cannot say: try again.
    if request.labels.get("flaky") and request.job_id not in failed_once:
        failed_once.add(request.job_id)
        return job_pb2.JobResult(
            job_id=request.job_id,
            status=job_pb2.JOB_STATUS_FAILED_RETRYABLE,
            error_message="not this time",
        )
    return job_pb2.JobResult(
        job_id=request.job_id, status=job_pb2.JOB_STATUS_SUCCEEDED
    )


async def main() -> None:
    named = {}
    if os.environ.get("WORKER_ID"):
        named["sender_id"] = os.environ["WORKER_ID"]
    print("started", flush=True)
    await run_worker(os.environ["NATS_URL"], os.environ["TOPIC"], handle, **named)


asyncio.run(main())
