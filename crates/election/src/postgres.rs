//! The lease as an advisory lock in Postgres.
//!
//! The lock belongs to a session and ends with it. What must stay true: the session that
//! tried the lock is either kept by the new leader or ended. While a try is under way the
//! session belongs to that try, so that a caller who gives up half way drops it, and with it
//! a lock nobody would renew.
//!
//! A session may outlive its leader's senses: a process that is stopped, or cut off behind
//! something that answers for it, keeps its lock for as long as it likes. So a standby reads
//! how old the leader's last renewal is, by the ledger's clock, and ends every session of a
//! holder that hangs.

use std::time::Duration;

use airlock_ledger::{LeaseConnection, Ledger, LedgerError, LockHolder, LockReleases};
use airlock_model::Shard;
use async_trait::async_trait;
use tokio::time::Instant;

use crate::ElectionConfig;
use crate::lease::{Acquired, Candidacy, Lease, LeaseError, Renewal};

/// Stands for the lock of one shard.
pub(crate) struct LockCandidacy {
    ledger: Ledger,
    instance: String,
    shard: Shard,
    key: i64,
    retry: Duration,
    ping_interval: Duration,
    timeout: Duration,
    /// The one session of a standby, kept between tries.
    session: Option<LeaseConnection>,
    releases: Option<LockReleases>,
    watch: HungWatch,
}

impl LockCandidacy {
    pub fn new(ledger: Ledger, config: &ElectionConfig, instance: String, shard: Shard) -> Self {
        Self {
            ledger,
            instance,
            shard,
            key: config.lock_key(shard),
            retry: config.retry_interval(),
            ping_interval: config.ping_interval(),
            timeout: config.ping_timeout(),
            session: None,
            releases: None,
            watch: HungWatch::new(config.hung_after, config.ping_interval()),
        }
    }

    /// Ends the sessions of a holder that hangs; whether it did.
    async fn end_hung_holder(
        &mut self,
        session: &mut LeaseConnection,
    ) -> Result<bool, LedgerError> {
        if !self.watch.is_due(Instant::now()) {
            return Ok(false);
        }
        let holder = session
            .find_lock_holder(self.key, self.shard, self.timeout)
            .await?;
        let Some(holder) = self.watch.judge(holder, Instant::now()) else {
            return Ok(false);
        };
        let silent_ms = holder.renewed_ago.unwrap_or_default().as_millis() as u64;
        match session.terminate_sessions(&holder, self.timeout).await {
            Ok(ended) => {
                tracing::warn!(
                    shard = self.shard.0,
                    leader = holder.instance,
                    silent_ms,
                    sessions = ended,
                    "ended the sessions of a leader that hangs"
                );
                self.watch.obstacle = None;
                Ok(ended > 0)
            }
            Err(error) if error.is_forbidden() => {
                let text = format!(
                    "leader {} hangs, and this role may not end its sessions: {error}. Use the \
                     same role for all schedulers, or grant it pg_signal_backend; otherwise the \
                     lock is free when Postgres drops the session",
                    holder.instance
                );
                if self.watch.obstacle.as_ref() != Some(&text) {
                    tracing::error!(shard = self.shard.0, leader = holder.instance, %error,
                        "cannot end the sessions of a leader that hangs");
                }
                self.watch.obstacle = Some(text);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The lock, when it is free or can be made free.
    async fn try_lock(
        &mut self,
        session: &mut LeaseConnection,
    ) -> Result<Option<bool>, LedgerError> {
        if session.try_lock(self.key, self.timeout).await? {
            return Ok(Some(false));
        }
        if self.end_hung_holder(session).await? {
            // The server frees the lock a moment after it said that the session ends.
            let end = Instant::now() + self.timeout;
            while Instant::now() < end {
                if session.try_lock(self.key, self.timeout).await? {
                    return Ok(Some(true));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(None)
    }
}

#[async_trait]
impl Candidacy for LockCandidacy {
    async fn try_acquire(&mut self) -> Result<Option<Acquired>, LeaseError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.ledger.lease_connection(&self.instance).await?,
        };
        let Some(ended_hung_leader) = self.try_lock(&mut session).await? else {
            self.session = Some(session);
            return Ok(None);
        };
        self.watch.forget();
        Ok(Some(Acquired {
            lease: Box::new(LockLease {
                session,
                key: self.key,
                interval: self.ping_interval,
                timeout: self.timeout,
            }),
            ended_hung_leader,
        }))
    }

    async fn wait_for_chance(&mut self) {
        let (key, retry) = (self.key, self.retry);
        let started = Instant::now();
        // Taken out: an error, or a caller who gives up, ends it.
        let releases = match self.releases.take() {
            Some(releases) => Ok(releases),
            None => {
                let listening = self.ledger.listen_for_releases(&self.instance);
                match tokio::time::timeout(self.timeout, listening).await {
                    Ok(done) => done.map_err(LeaseError::from),
                    Err(_) => return,
                }
            }
        };
        let Ok(mut releases) = releases else {
            tokio::time::sleep_until(started + retry).await;
            return;
        };
        match tokio::time::timeout_at(started + retry, releases.wait_for_release(key)).await {
            Ok(Ok(())) | Err(_) => self.releases = Some(releases),
            Ok(Err(_)) => tokio::time::sleep_until(started + retry).await,
        }
    }

    async fn withdraw(&mut self) {
        self.releases = None;
        if let Some(session) = self.session.take() {
            session.release(self.timeout).await;
        }
    }

    fn obstacle(&self) -> Option<String> {
        self.watch.obstacle.clone()
    }
}

/// When the holder of the lock is taken for hung.
///
/// The age of the last renewal alone does not tell: after a pause of the database itself a
/// standby may be answered before the leader is. And a candidate that has just won has not
/// renewed yet. So the same session must have held the lock for all that time, and must be
/// found silent twice, with time for a renewal between.
struct HungWatch {
    after: Duration,
    confirm: Duration,
    /// The holder, and since when this standby has seen it.
    holder: Option<(Session, Instant)>,
    silent_since: Option<Instant>,
    next: Option<Instant>,
    obstacle: Option<String>,
}

/// A session of the server's: numbers of processes come again, with another beginning.
type Session = (i32, Option<airlock_model::Timestamp>);

impl HungWatch {
    fn new(after: Duration, ping_interval: Duration) -> Self {
        Self {
            after,
            confirm: ping_interval.min(after / 4) / 2,
            holder: None,
            silent_since: None,
            next: None,
            obstacle: None,
        }
    }

    /// Whether the holder is to be looked at now: less often than the lock is tried.
    fn is_due(&mut self, now: Instant) -> bool {
        if self.next.is_some_and(|next| now < next) {
            return false;
        }
        self.next = Some(now + self.confirm);
        true
    }

    /// The holder, if it is to be ended.
    fn judge(&mut self, holder: Option<LockHolder>, now: Instant) -> Option<LockHolder> {
        let Some(holder) = holder else {
            self.forget();
            return None;
        };
        let session = (holder.pid, holder.began);
        let seen_since = match self.holder {
            Some((seen, since)) if seen == session => since,
            _ => {
                self.forget();
                self.holder = Some((session, now));
                now
            }
        };
        // Who never led has no renewal; it has held the lock for as long as it was seen to.
        let silent = holder.renewed_ago.is_none_or(|ago| ago >= self.after);
        if !silent || now.duration_since(seen_since) < self.after {
            self.silent_since = None;
            self.obstacle = None;
            return None;
        }
        let since = *self.silent_since.get_or_insert(now);
        (now.duration_since(since) >= self.confirm).then_some(holder)
    }

    fn forget(&mut self) {
        self.holder = None;
        self.silent_since = None;
        self.obstacle = None;
    }
}

/// The session that holds the lock.
struct LockLease {
    session: LeaseConnection,
    key: i64,
    interval: Duration,
    timeout: Duration,
}

#[async_trait]
impl Lease for LockLease {
    async fn renew(&mut self) -> Renewal {
        match self.session.ping(self.timeout).await {
            Ok(()) => Renewal::Held,
            // The lock went with its session: nothing is gained by using a dead connection
            // twice more, and a standby may lead already.
            Err(error) if error.ends_session() => {
                Renewal::Lost(format!("the session with the lock has ended: {error}"))
            }
            Err(error) => Renewal::Missed(error.into()),
        }
    }

    fn renewal_interval(&self) -> Duration {
        self.interval
    }

    fn valid_until(&self) -> Option<Instant> {
        None
    }

    async fn release(self: Box<Self>) {
        self.session.unlock_and_close(self.key, self.timeout).await;
    }
}

#[cfg(test)]
mod tests {
    use airlock_model::Timestamp;

    use super::*;

    const AFTER: Duration = Duration::from_secs(6);

    fn holder(pid: i32, renewed_ago: Option<u64>) -> Option<LockHolder> {
        Some(LockHolder {
            instance: "a".to_owned(),
            pid,
            began: Some(Timestamp(1)),
            at: Timestamp(2),
            renewed_ago: renewed_ago.map(Duration::from_secs),
        })
    }

    fn watch() -> (HungWatch, Instant) {
        let watch = HungWatch::new(AFTER, Duration::from_secs(1));
        (watch, Instant::now())
    }

    #[test]
    fn a_holder_is_ended_when_it_was_found_silent_twice() {
        let (mut watch, t) = watch();
        assert!(watch.judge(holder(1, Some(0)), t).is_none());
        assert!(watch.judge(holder(1, Some(5)), t + AFTER).is_none());
        assert!(watch.judge(holder(1, Some(6)), t + AFTER).is_none());
        assert!(watch.judge(holder(1, Some(7)), t + AFTER * 2).is_some());
    }

    #[test]
    fn one_that_is_heard_again_or_has_just_won_is_left_alone() {
        let (mut watch, t) = watch();
        watch.judge(holder(1, Some(60)), t);
        assert!(watch.judge(holder(1, Some(66)), t + AFTER).is_none());
        // The database had stood still, and the leader was answered after us.
        assert!(watch.judge(holder(1, Some(0)), t + AFTER * 2).is_none());
        assert!(watch.judge(holder(1, Some(7)), t + AFTER * 3).is_none());
        // Another session has the lock, and its term has not begun.
        assert!(watch.judge(holder(2, Some(9)), t + AFTER * 4).is_none());
        assert!(
            watch
                .judge(holder(2, Some(9)), t + AFTER * 4 + AFTER / 2)
                .is_none()
        );
        // Nor may it stand still for ever before its first term.
        assert!(watch.judge(holder(2, None), t + AFTER * 5).is_none());
        assert!(watch.judge(holder(2, None), t + AFTER * 6).is_some());
        assert!(watch.judge(None, t + AFTER * 7).is_none());
        assert!(watch.judge(holder(2, None), t + AFTER * 7).is_none());
    }

    #[test]
    fn the_holder_is_looked_at_less_often_than_the_lock_is_tried() {
        let (mut watch, t) = watch();
        assert!(watch.is_due(t));
        assert!(!watch.is_due(t + Duration::from_millis(100)));
        assert!(watch.is_due(t + Duration::from_secs(1)));
    }
}
