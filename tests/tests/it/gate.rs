//! The first door under random faults: in closed mode no job is ever dispatched without
//! an allowing decision of the policy it names, whatever happens to policy, kernel and
//! Redis, in whatever order.
//!
//! One stack lives through many short sequences of faults drawn from a seed, which is
//! printed. Each sequence submits jobs between its faults; about half of them end with
//! everything mended, so that what may run does run. Afterwards every dispatch of every
//! job is compared with what the policy that its decision names really says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Seen, Service, Stack, eventually, http_get};
use anyhow::{Context, Result, ensure};

use crate::support::client;

/// Sequences go on for so long, and there are at least so many.
const GO_ON_FOR: Duration = Duration::from_secs(45);
const AT_LEAST: usize = 12;
/// Jobs differ in what the policy says about their kind.
const KINDS: [&str; 4] = ["a", "b", "c", "d"];
/// How long after a newer policy was seen in force an older one may still be acted on: a
/// second since it was confirmed, half a second for the confirmation, and room for a
/// machine that is busy.
const LATEST: f64 = 4.0;

/// Small and good enough to draw faults with (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A policy that was written, and what it says.
struct Written {
    number: usize,
    allows: BTreeSet<&'static str>,
    /// Seconds of the ledger's clock at which it was first seen in force.
    seen: Option<f64>,
}

#[derive(Default)]
struct Faults {
    kernel_dead: bool,
    kernel_stopped: bool,
    redis_dead: bool,
}

struct Gate {
    stack: Stack,
    client: Client,
    dice: Dice,
    faults: Faults,
    policies: BTreeMap<String, Written>,
    written: usize,
    jobs: BTreeMap<String, (usize, &'static str)>,
}

fn policy(number: usize, decisions: &[(&'static str, &'static str)]) -> String {
    let mut text = "version: 1\nrules:\n".to_owned();
    for (kind, decision) in decisions {
        text.push_str(&format!(
            "  - {{id: {kind}-{number}, match: {{topics: ['job.*'], labels: {{kind: {kind}}}}}, decision: {decision}}}\n"
        ));
    }
    text
}

impl Gate {
    async fn start(seed: u64) -> Result<Self> {
        let scheduler = [
            ("AIRLOCK_KERNEL__TIMEOUT", "300ms"),
            ("AIRLOCK_KERNEL__BREAKER__OPEN_FOR", "400ms"),
            ("AIRLOCK_KERNEL__BREAKER__OPEN_DELAY", "200ms"),
            ("AIRLOCK_SCHEDULER__SAFETY_THROTTLE_DELAY", "300ms"),
        ];
        let mut builder = Stack::builder().policy(&policy(0, &[]));
        for (name, value) in scheduler {
            builder = builder.env_for(Service::Scheduler, name, value);
        }
        let stack = builder.start().await?;
        Ok(Self {
            client: client(&stack)?,
            stack,
            dice: Dice(seed),
            faults: Faults::default(),
            policies: BTreeMap::new(),
            written: 0,
            jobs: BTreeMap::new(),
        })
    }

    async fn sequence(&mut self, number: usize) -> Result<()> {
        self.new_policy().await?;
        for _ in 0..3 + self.dice.roll(5) {
            self.fault().await?;
            self.submit(number).await?;
        }
        if self.dice.roll(2) == 0 {
            self.mend().await?;
            self.new_policy().await?;
            self.submit(number).await?;
            self.settled(number).await?;
        }
        Ok(())
    }

    async fn new_policy(&mut self) -> Result<()> {
        const WORDS: [&str; 5] = ["allow", "allow", "deny", "throttle", "require_approval"];
        self.written += 1;
        let decisions = KINDS.map(|kind| (kind, WORDS[self.dice.roll(5) as usize]));
        let text = policy(self.written, &decisions);
        let snapshot = airlock_policy::Policy::load(&text)
            .context("the test's own policy")?
            .snapshot()
            .to_string();
        let allows = decisions
            .iter()
            .filter(|(_, decision)| *decision == "allow")
            .map(|(kind, _)| *kind)
            .collect();
        self.policies.insert(
            snapshot.clone(),
            Written {
                number: self.written,
                allows,
                seen: None,
            },
        );
        self.stack.write_policy(&text)?;
        if self.faults.kernel_dead || self.faults.kernel_stopped {
            return Ok(());
        }
        self.in_force(&snapshot).await
    }

    /// Waits until the kernel says so, and notes when.
    async fn in_force(&mut self, snapshot: &str) -> Result<()> {
        let addr = self.stack.kernel().http_addr().context("an address")?;
        eventually(
            Duration::from_secs(60),
            "the policy is in force",
            || async {
                let body = http_get(addr, "/health/ready").await?.body;
                Ok(Seen::when(body.contains(snapshot), body))
            },
        )
        .await?;
        let rows = self
            .stack
            .postgres()
            .query("SELECT extract(epoch FROM clock_timestamp())::text")
            .await?;
        let now = rows[0][0].clone().context("the time")?.parse()?;
        if let Some(written) = self.policies.get_mut(snapshot) {
            written.seen = Some(now);
        }
        Ok(())
    }

    async fn fault(&mut self) -> Result<()> {
        let stack = &self.stack;
        match self.dice.roll(9) {
            0 => self.new_policy().await?,
            1 => stack.write_policy("version: 1\nrulez: []\n")?,
            2 if !self.faults.kernel_dead && !self.faults.kernel_stopped => {
                stack.kernel().kill9()?;
                self.faults.kernel_dead = true;
            }
            3 if !self.faults.kernel_dead && !self.faults.kernel_stopped => {
                stack.kernel().stop()?;
                self.faults.kernel_stopped = true;
            }
            4 if self.faults.kernel_stopped => {
                stack.kernel().cont()?;
                self.faults.kernel_stopped = false;
            }
            5 if self.faults.kernel_dead => {
                stack.kernel().respawn()?;
                self.faults.kernel_dead = false;
            }
            6 if !self.faults.redis_dead => {
                stack.redis().kill()?;
                self.faults.redis_dead = true;
            }
            7 if self.faults.redis_dead => {
                stack.redis().restart().await?;
                self.faults.redis_dead = false;
            }
            8 if !self.faults.redis_dead => stack.redis().flushall().await?,
            // Nothing to do that to: a quiet moment.
            _ => {}
        }
        Ok(())
    }

    async fn mend(&mut self) -> Result<()> {
        if self.faults.kernel_stopped {
            self.stack.kernel().cont()?;
        }
        if self.faults.redis_dead {
            self.stack.redis().restart().await?;
        }
        if !self.stack.kernel().is_running() {
            self.stack.kernel().respawn()?;
        }
        self.faults = Faults::default();
        Ok(())
    }

    async fn submit(&mut self, sequence: usize) -> Result<()> {
        for kind in KINDS {
            if self.dice.roll(2) == 0 {
                continue;
            }
            let request = SubmitRequest::new("job.echo").label("kind", kind);
            let job = self.client.submit(&request).await?;
            self.jobs.insert(job.job_id, (sequence, kind));
        }
        Ok(())
    }

    /// All is mended: what the policy now lets through has been let through.
    async fn settled(&self, sequence: usize) -> Result<()> {
        let newest = self.policies.values().max_by_key(|w| w.number);
        let allows = newest.map(|w| w.allows.clone()).unwrap_or_default();
        let waiting: BTreeSet<&String> = self
            .jobs
            .iter()
            .filter(|(_, (s, kind))| *s == sequence && allows.contains(kind))
            .map(|(id, _)| id)
            .collect();
        eventually(
            Duration::from_secs(90),
            "what is allowed has run",
            || async {
                let rows = self
                    .stack
                    .postgres()
                    .query("SELECT job_id FROM job_state WHERE state = 1")
                    .await?;
                let open: Vec<_> = rows
                    .into_iter()
                    .filter_map(|row| row.first().cloned().flatten())
                    .filter(|id| waiting.contains(id))
                    .collect();
                Ok(Seen::when(open.is_empty(), format!("{open:?}")))
            },
        )
        .await
    }

    /// Every dispatch has an allowing decision behind it. Returns the sequences that
    /// reached one.
    async fn check(&self) -> Result<BTreeSet<usize>> {
        let rows = self
            .stack
            .postgres()
            .query(
                "SELECT job_id, decision::text, rule_id, policy_snapshot, \
                     extract(epoch FROM scheduled_at)::text, (decided_at <= scheduled_at)::text \
                 FROM job_state WHERE attempt > 0 OR scheduled_at IS NOT NULL",
            )
            .await?;
        let mut dispatched = BTreeSet::new();
        let mut reached = BTreeSet::new();
        for row in rows {
            let text = |i: usize| row.get(i).cloned().flatten().unwrap_or_default();
            let id = text(0);
            let (sequence, kind) = *self.jobs.get(&id).context("a job nobody submitted")?;
            ensure!(text(1) == "1", "job {id} ran on decision {}", text(1));
            let written = self
                .policies
                .get(&text(3))
                .with_context(|| format!("job {id} ran under {:?}, which never was", text(3)))?;
            ensure!(
                written.allows.contains(kind),
                "job {id} of kind {kind} ran under policy {}, which does not allow it",
                written.number
            );
            ensure!(text(2) == format!("{kind}-{}", written.number), "{row:?}");
            ensure!(
                text(5) == "true",
                "job {id} was decided after it was scheduled"
            );
            let at: f64 = text(4).parse()?;
            let newer = self
                .policies
                .values()
                .filter(|w| w.number > written.number)
                .filter_map(|w| w.seen)
                .fold(f64::INFINITY, f64::min);
            ensure!(
                at <= newer + LATEST,
                "job {id} was scheduled under policy {} {:.1} s after a newer one was in force",
                written.number,
                at - newer
            );
            dispatched.insert(id);
            reached.insert(sequence);
        }
        for line in self.stack.journal()? {
            ensure!(
                dispatched.contains(&line.job_id),
                "a worker ran {line:?}, which was never allowed"
            );
        }
        Ok(reached)
    }
}

#[tokio::test]
async fn nothing_is_dispatched_without_an_allowing_decision() -> Result<()> {
    let seed = match std::env::var("AIRLOCK_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .as_nanos() as u64,
    };
    println!("AIRLOCK_SEED={seed}");
    let mut gate = Gate::start(seed).await?;
    let began = Instant::now();
    let mut tried = 0;
    while tried < AT_LEAST || began.elapsed() < GO_ON_FOR {
        let go = gate.sequence(tried).await;
        go.with_context(|| format!("sequence {tried} of AIRLOCK_SEED={seed}"))?;
        tried += 1;
    }
    gate.mend().await?;
    let reached = gate.check().await?;
    println!(
        "{tried} sequences tried, {} of them reached a dispatch, {} jobs",
        reached.len(),
        gate.jobs.len()
    );
    ensure!(
        reached.len() * 10 >= tried,
        "only {} of {tried} sequences reached a dispatch; AIRLOCK_SEED={seed}",
        reached.len()
    );
    Ok(())
}
