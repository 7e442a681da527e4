//! The scheduler's side of the conversation, played by the test over a real bus.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_bus::{
    BoxError, Bus, BusConfig, Consumer, DeadLetters, DeadMessage, Outcome, Outgoing, SecretUrl,
    StreamName, Subscription, subjects,
};
use airlock_model::ids::{Epoch, Shard};
use airlock_model::{Timestamp, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{self, JobStatus};
use airlock_proto::{own, packet};
use airlock_testkit::{Nats, Redis, Seen, eventually};
use airlock_worker::{Builder, Stats, Worker, WorkerError};
use anyhow::{Context, bail};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Far longer than anything takes; only a failure waits for it.
pub const BOUND: Duration = Duration::from_secs(20);
pub const WORKER: &str = "w1";
pub const EPOCH: u64 = 7;

pub struct FakeScheduler {
    pub nats: Nats,
    pub redis: Redis,
    pub bus: Bus,
    results: Consumer,
    ready: VecDeque<cap::JobResult>,
    pub handshakes: Subscription,
    pub heartbeats: Subscription,
    pub progress: Subscription,
    pub incarnation: String,
}

pub struct Running {
    pub task: JoinHandle<Result<(), WorkerError>>,
    pub stop: CancellationToken,
    pub stats: Arc<Stats>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A dispatch to the worker under test.
#[derive(Clone)]
pub struct Order {
    pub id: Uuid,
    pub job_id: String,
    pub topic: String,
    pub context_ptr: String,
    pub detail: own::Dispatch,
}

impl FakeScheduler {
    pub async fn start() -> anyhow::Result<Self> {
        let nats = Nats::start().await?;
        let redis = Redis::start().await?;
        let config = BusConfig {
            url: SecretUrl::new(nats.url()),
            ..BusConfig::default()
        };
        let bus = Bus::connect(&config, "fake-scheduler").await?;
        Ok(Self {
            results: bus
                .take_over_consumer(
                    StreamName::Sys,
                    subjects::JOB_RESULT,
                    "fake-results",
                    Shard(0),
                    Epoch(1),
                )
                .await?,
            ready: VecDeque::new(),
            handshakes: bus.subscribe(subjects::HANDSHAKE, None).await?,
            heartbeats: bus.subscribe(subjects::HEARTBEAT, None).await?,
            progress: bus.subscribe(subjects::JOB_PROGRESS, None).await?,
            incarnation: String::new(),
            bus,
            nats,
            redis,
        })
    }

    /// Starts a worker, changed as the test wants it, and waits for its handshake.
    pub async fn worker(
        &mut self,
        change: impl FnOnce(Builder) -> Builder,
    ) -> anyhow::Result<Running> {
        let worker = Worker::builder(WORKER)
            .id(WORKER)
            .ignore_environment()
            .nats_url(self.nats.url())
            .redis_url(self.redis.url());
        let worker = change(worker);
        let stats = worker.stats();
        let stop = CancellationToken::new();
        let task = tokio::spawn(worker.run_until(stop.clone()));
        let handshake = self.handshake().await?;
        self.incarnation = handshake.airlock.context("no WorkerHello")?.incarnation;
        Ok(Running { task, stop, stats })
    }

    pub async fn handshake(&mut self) -> anyhow::Result<cap::Handshake> {
        match next(&mut self.handshakes, "a handshake").await? {
            Payload::Handshake(handshake) => Ok(handshake),
            other => bail!("not a handshake: {other:?}"),
        }
    }

    pub async fn heartbeat(&mut self) -> anyhow::Result<cap::Heartbeat> {
        match next(&mut self.heartbeats, "a heartbeat").await? {
            Payload::Heartbeat(heartbeat) => Ok(heartbeat),
            other => bail!("not a heartbeat: {other:?}"),
        }
    }

    pub async fn progress(&mut self) -> anyhow::Result<cap::JobProgress> {
        match next(&mut self.progress, "progress").await? {
            Payload::JobProgress(progress) => Ok(progress),
            other => bail!("not progress: {other:?}"),
        }
    }

    pub fn order(&self, topic: &str, input: &str) -> Order {
        Order {
            id: Uuid::new_v4(),
            job_id: Uuid::new_v4().to_string(),
            topic: topic.to_owned(),
            context_ptr: String::new(),
            detail: own::Dispatch {
                epoch: EPOCH,
                accept_by_ms: now_ms() + 60_000,
                incarnation: self.incarnation.clone(),
                payload: Some(Bytes::from(input.to_owned())),
                max_attempts: 3,
                ..own::Dispatch::default()
            },
        }
    }

    /// An order as it goes to the worker's subject, without a message id, so that the same
    /// one can be sent twice.
    pub fn packet(&self, order: &Order) -> anyhow::Result<Outgoing> {
        let request = cap::JobRequest {
            job_id: order.job_id.clone(),
            topic: order.topic.clone(),
            tenant_id: "acme".to_owned(),
            context_ptr: order.context_ptr.clone(),
            dispatch: Some(identity(order.id)),
            airlock: Some(order.detail.clone()),
            ..cap::JobRequest::default()
        };
        Ok(Outgoing {
            subject: subjects::worker_jobs(&worker_id()?),
            payload: seal(Payload::JobRequest(request)),
            msg_id: None,
            traceparent: Some(TRACEPARENT.to_owned()),
        })
    }

    pub async fn dispatch(&self, order: &Order) -> anyhow::Result<()> {
        let outgoing = self.packet(order)?;
        self.bus.publish(outgoing).await.context("dispatching")
    }

    /// Dispatches a fresh order.
    pub async fn send(&self, topic: &str, input: &str) -> anyhow::Result<Order> {
        let order = self.order(topic, input);
        self.dispatch(&order).await?;
        Ok(order)
    }

    /// The same after an outage, when the test itself may not be connected yet.
    pub async fn send_when_connected(&self, topic: &str, input: &str) -> anyhow::Result<Order> {
        let order = self.order(topic, input);
        eventually(BOUND, "the dispatch to be published", || async {
            self.dispatch(&order).await?;
            Ok(Seen::Done(()))
        })
        .await?;
        Ok(order)
    }

    pub async fn result(&mut self) -> anyhow::Result<cap::JobResult> {
        loop {
            if let Some(result) = self.ready.pop_front() {
                return Ok(result);
            }
            let batch = timeout(BOUND, self.results.next_batch(100))
                .await
                .context("no result came")??;
            for delivery in &batch {
                // A worker that traces nothing itself need not repeat what the job came with;
                // it never names another trace.
                let trace = delivery.traceparent.as_deref();
                assert!(trace.is_none_or(|t| t == TRACEPARENT), "{trace:?}");
                match packet::decode(delivery.payload.clone())?.1 {
                    Payload::JobResult(result) => self.ready.push_back(result),
                    other => bail!("not a result: {other:?}"),
                }
            }
            let done = batch.into_iter().map(|d| (d, Outcome::Done)).collect();
            self.results.settle(done, &NoDeadLetters).await;
        }
    }

    /// A result that has come already.
    pub fn ready_result(&mut self) -> Option<cap::JobResult> {
        self.ready.pop_front()
    }

    /// The result of this order; repeats of others are passed over.
    pub async fn result_of(&mut self, order: &Order) -> anyhow::Result<cap::JobResult> {
        loop {
            let result = self.result().await?;
            if dispatch_of(&result) == order.id.to_string() {
                return Ok(result);
            }
        }
    }

    pub async fn control(&self, control: own::WorkerControl) -> anyhow::Result<()> {
        let subject = subjects::worker_control(&worker_id()?);
        let packet = seal(Payload::WorkerControl(control));
        Ok(self.bus.send(subject, packet, None).await?)
    }

    /// A control message of a scheduler whose clock says `at_ms`.
    pub async fn control_at(&self, at_ms: i64, control: own::WorkerControl) -> anyhow::Result<()> {
        let subject = subjects::worker_control(&worker_id()?);
        let payload = Payload::WorkerControl(control);
        let packet = packet::encode("fake", "trace", Timestamp(at_ms * 1_000), payload);
        Ok(self.bus.send(subject, packet, None).await?)
    }

    pub async fn receipt(&self, order: &Order) -> anyhow::Result<()> {
        self.receipts(vec![order.id.to_string()]).await
    }

    pub async fn receipts(&self, receipts: Vec<String>) -> anyhow::Result<()> {
        self.control(own::WorkerControl {
            epoch: EPOCH,
            receipts,
            ..own::WorkerControl::default()
        })
        .await
    }

    pub async fn inventory(&self) -> anyhow::Result<own::WorkerInventory> {
        let inbox = self.bus.new_inbox();
        let mut answers = self.bus.subscribe(&inbox, None).await?;
        let control = own::WorkerControl {
            epoch: EPOCH,
            inventory: true,
            ..own::WorkerControl::default()
        };
        let subject = subjects::worker_control(&worker_id()?);
        let packet = seal(Payload::WorkerControl(control));
        self.bus.send_with_reply(subject, inbox, packet).await?;
        match next(&mut answers, "an inventory").await? {
            Payload::WorkerInventory(inventory) => Ok(inventory),
            other => bail!("not an inventory: {other:?}"),
        }
    }

    pub async fn cancel(&self, order: &Order, by_dispatch: bool) -> anyhow::Result<()> {
        let cancel = cap::JobCancel {
            job_id: order.job_id.clone(),
            reason: "not wanted any more".to_owned(),
            requested_by: "tester".to_owned(),
            dispatch: by_dispatch.then(|| identity(order.id)),
            ..cap::JobCancel::default()
        };
        let packet = seal(Payload::JobCancel(cancel));
        Ok(self.bus.send(subjects::JOB_CANCEL, packet, None).await?)
    }
}

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

pub async fn next(subscription: &mut Subscription, what: &str) -> anyhow::Result<Payload> {
    let incoming = timeout(BOUND, subscription.recv())
        .await
        .with_context(|| format!("waiting for {what}"))?
        .context("the bus is closed")?;
    Ok(packet::decode(incoming.payload)?.1)
}

fn identity(dispatch: Uuid) -> cap::DispatchIdentity {
    cap::DispatchIdentity {
        dispatch_id: dispatch.to_string(),
        attempt: 1,
        assigned_worker_id: WORKER.to_owned(),
    }
}

fn worker_id() -> anyhow::Result<WorkerId> {
    Ok(WorkerId::new(WORKER)?)
}

fn seal(payload: Payload) -> Bytes {
    packet::encode("fake", "trace", Timestamp(now_ms() * 1_000), payload)
}

pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

pub fn status(result: &cap::JobResult) -> JobStatus {
    JobStatus::try_from(result.status).unwrap_or(JobStatus::Unspecified)
}

pub fn dispatch_of(result: &cap::JobResult) -> &str {
    result.dispatch.as_ref().map_or("", |d| &d.dispatch_id)
}

pub fn detail(result: &cap::JobResult) -> own::ResultDetail {
    result.airlock.clone().expect("an SDK worker's result")
}

struct NoDeadLetters;

#[async_trait]
impl DeadLetters for NoDeadLetters {
    async fn put(&self, _: Vec<DeadMessage>) -> Result<(), BoxError> {
        Ok(())
    }
}
