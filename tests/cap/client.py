"""A client on the bus alone: writes contexts to Redis and submits packets with the SDK.

Reads one JSON document from a file: `contexts` (Redis key → text), `jobs` (each a
JobRequest in protobuf's JSON form), `copies` (each job so many times, with a number
appended to its id), `results` (each a JobResult in the same form, as a worker would send
it), `raw` and `raw_results` (packets as hexadecimal, sent as they are).
With PRIVATE_KEY the jobs are signed.
"""

import asyncio
import json
import os
import sys
import uuid

import nats
import redis.asyncio as redis
from cap.client import submit_job
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from cap.subjects import SUBJECT_RESULT, SUBJECT_SUBMIT
from cryptography.hazmat.primitives import serialization
from google.protobuf import json_format


async def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        order = json.load(file)
    key = None
    if os.environ.get("PRIVATE_KEY"):
        with open(os.environ["PRIVATE_KEY"], "rb") as pem:
            key = serialization.load_pem_private_key(pem.read(), None)
    store = redis.from_url(os.environ["REDIS_URL"])
    for name, text in order.get("contexts", {}).items():
        await store.set(name, text)
    await store.aclose()
    connection = await nats.connect(os.environ["NATS_URL"])
    for job in order.get("jobs", []):
        request = json_format.ParseDict(job, job_pb2.JobRequest())
        await submit_job(connection, request, uuid.uuid4().hex, "cap-client", key)
        for number in range(1, order.get("copies", 1)):
            copy = job_pb2.JobRequest()
            copy.CopyFrom(request)
            copy.job_id = f"{request.job_id}-{number}"
            await submit_job(connection, copy, uuid.uuid4().hex, "cap-client", key)
    for result in order.get("results", []):
        packet = buspacket_pb2.BusPacket(
            trace_id=uuid.uuid4().hex, sender_id=result["workerId"], protocol_version=1
        )
        packet.created_at.GetCurrentTime()
        json_format.ParseDict(result, packet.job_result)
        await connection.publish(SUBJECT_RESULT, packet.SerializeToString())
    for packet in order.get("raw", []):
        await connection.publish(SUBJECT_SUBMIT, bytes.fromhex(packet))
    for packet in order.get("raw_results", []):
        await connection.publish(SUBJECT_RESULT, bytes.fromhex(packet))
    await connection.drain()
    print("submitted", flush=True)


asyncio.run(main(sys.argv[1]))
