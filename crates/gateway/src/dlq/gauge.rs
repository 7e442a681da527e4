//! How many dead letters wait for somebody, as a gauge.
//!
//! The ledger is asked every few seconds, whatever writes or removes letters. All
//! gateways show the same numbers. What must stay true: no more series than [`MOST`] and
//! one, however many topics clients think of, and a pair that is no more is not shown.

use std::collections::HashSet;
use std::time::Duration;

use airlock_ledger::{Ledger, OpenDeadLetters};
use airlock_service::{Context, Metrics};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::connections::Links;

const EVERY: Duration = Duration::from_secs(5);
/// Pairs of reason and topic that are shown by themselves.
const MOST: u32 = 200;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    reason: String,
    topic: String,
}

#[derive(Clone)]
pub struct DeadLetterGauge {
    letters: Family<Kind, Gauge>,
    oldest: Gauge,
}

impl DeadLetterGauge {
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            letters: metrics.family(
                "cordum_gateway_dead_letters",
                "Dead letters that nobody has tried again, by reason and topic",
            ),
            oldest: metrics.gauge(
                "cordum_gateway_dead_letter_oldest_seconds",
                "Age of the oldest dead letter that nobody has tried again; 0 without any",
            ),
        }
    }

    /// Counts until the service stops.
    pub fn start_counting(self, links: &Links, ctx: &Context) {
        let (links, shutdown) = (links.clone(), ctx.shutdown.clone());
        ctx.tasks.spawn_restarting("dead-letters", move || {
            let (gauge, links, shutdown) = (self.clone(), links.clone(), shutdown.clone());
            async move {
                tokio::select! {
                    () = shutdown.cancelled() => Ok::<(), anyhow::Error>(()),
                    never = gauge.count_repeatedly(&links) => match never {},
                }
            }
        });
    }

    async fn count_repeatedly(&self, links: &Links) -> std::convert::Infallible {
        let mut shown = HashSet::new();
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Some(ledger) = links.ledger() {
                shown = self.count_dead_letters(&ledger, shown).await;
            }
        }
    }

    async fn count_dead_letters(&self, ledger: &Ledger, shown: HashSet<Kind>) -> HashSet<Kind> {
        match ledger.open_dead_letters(MOST).await {
            Ok(counted) => self.set_series(counted, &shown),
            Err(error) => {
                tracing::debug!(%error, "counting dead letters failed");
                shown
            }
        }
    }

    fn set_series(&self, counted: Vec<OpenDeadLetters>, shown: &HashSet<Kind>) -> HashSet<Kind> {
        let oldest = counted.iter().map(|letters| letters.age.as_secs()).max();
        self.oldest.set(to_i64(oldest.unwrap_or(0)));
        let mut now = HashSet::with_capacity(counted.len());
        for letters in counted {
            let kind = Kind {
                reason: letters.reason_code,
                topic: letters.topic,
            };
            self.letters.get_or_create(&kind).set(to_i64(letters.count));
            now.insert(kind);
        }
        for gone in shown.difference(&now) {
            self.letters.remove(gone);
        }
        now
    }
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
