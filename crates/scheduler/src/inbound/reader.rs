//! Reading a stream in batches, a few of them under way at once.

use std::sync::Arc;
use std::time::Duration;

use airlock_bus::{Consumer, Delivery, Outcome, Settler};
use tokio::sync::Semaphore;

use crate::term::Term;

/// Batches under way at once: one is with the kernel or the core while the next is read.
pub const PARALLEL: usize = 4;

/// How long a message waits after trouble with a store: `base`, growing with how often the
/// message came. A message may come a limited number of times, and an hour without a store
/// must not use them up.
pub fn store_retry_delay(base: Duration, deliveries: u64) -> Duration {
    base * u32::try_from(deliveries.saturating_sub(9).clamp(1, 60)).unwrap_or(60)
}

/// Hands every batch to `take` until the term is over. A message that came too often is
/// poison and goes no further.
pub async fn for_each_batch<F, Fut>(
    name: &'static str,
    term: Arc<Term>,
    mut consumer: Consumer,
    take: F,
) -> anyhow::Result<()>
where
    F: Fn(Arc<Term>, Settler, Vec<Delivery>) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(PARALLEL));
    let settler = consumer.settler();
    loop {
        let permit = permits.clone().acquire_owned().await?;
        let deliveries = tokio::select! {
            () = term.ctx.over.cancelled() => return Ok(()),
            batch = consumer.next_batch(term.ctx.config.scheduler.batch) => batch?,
        };
        let limit = term.stores.bus.config().max_deliver;
        let (worn, fresh): (Vec<_>, Vec<_>) = deliveries
            .into_iter()
            .partition(|delivery| delivery.is_exhausted(limit));
        if !worn.is_empty() {
            let poison = worn.into_iter().map(|delivery| {
                let reason = format!("delivered {} times without success", delivery.deliveries);
                (delivery, Outcome::Poison { reason })
            });
            term.acks
                .settle_deliveries(&settler, poison.collect())
                .await;
        }
        let taken = take(term.clone(), settler.clone(), fresh);
        term.ctx.tasks.spawn_contained(name, async move {
            taken.await;
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_deliveries_last_through_an_hour_without_a_store() {
        let base = crate::Config::default().scheduler.retry_delay_store;
        let all: Duration = (1..100).map(|n| store_retry_delay(base, n)).sum();
        assert!(all > Duration::from_secs(3600), "{all:?}");
        assert_eq!(store_retry_delay(base, 1), base);
    }
}
