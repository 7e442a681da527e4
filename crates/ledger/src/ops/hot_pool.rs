//! Connections for what every job needs: kept open, with plans made once.
//!
//! The pool is right for everything else and wrong here. It says a word to the server
//! after every use, hands connections out in turn, so that no server process stays warm,
//! and lets the server plan anew for every array that has another length.
//!
//! What must stay true: a connection is used again only after a statement that was
//! answered, be it with a refusal. Whatever else happened to one, it is closed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgSeverity};
use sqlx::{Connection, PgConnection};
use tokio::sync::Semaphore;

use crate::error::{ErrorContext, LedgerError};

/// As many as run at once; one more waits for its turn.
const MAX_CONNECTIONS: usize = 4;

/// Cheap to clone; clones share the connections.
#[derive(Clone)]
pub(crate) struct HotPool(Arc<Inner>);

struct Inner {
    options: PgConnectOptions,
    limit: Duration,
    permits: Semaphore,
    /// The one used last is used first: it is the warm one.
    idle: Mutex<Vec<PgConnection>>,
}

impl HotPool {
    pub fn new(options: &PgConnectOptions, limit: Duration) -> Self {
        Self(Arc::new(Inner {
            options: options.clone(),
            limit,
            permits: Semaphore::new(MAX_CONNECTIONS),
            idle: Mutex::default(),
        }))
    }

    /// Runs one statement, or several that need no transaction, within the time limit.
    pub async fn run<T>(
        &self,
        doing: &'static str,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, LedgerError> {
        let inner = &*self.0;
        let done = tokio::time::timeout(inner.limit, async {
            let _permit = inner.permits.acquire().await;
            // Taken before the match, which would hold the list while a new one is opened.
            let idle = inner.idle_connections().pop();
            let mut conn = match idle {
                Some(conn) => conn,
                None => open_connection(&inner.options, inner.limit).await?,
            };
            let done = work(&mut conn).await;
            if is_reusable(&done) {
                inner.idle_connections().push(conn);
            } else {
                // The others are probably as dead as this one.
                inner.idle_connections().clear();
            }
            done.context(doing)
        });
        match done.await {
            Ok(done) => done,
            Err(_) => Err(LedgerError::timeout(doing, inner.limit)),
        }
    }

    /// Ends those that are not in use.
    pub async fn close(&self) {
        let idle = std::mem::take(&mut *self.0.idle_connections());
        for conn in idle {
            // The server notices either way.
            let _ = conn.close().await;
        }
    }
}

/// Whether the server answered and waits for the next statement. A fatal answer is its
/// last one.
fn is_reusable<T>(done: &Result<T, sqlx::Error>) -> bool {
    match done {
        Ok(_) => true,
        Err(sqlx::Error::Database(e)) => e
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|e| e.severity() == PgSeverity::Error),
        Err(_) => false,
    }
}

impl Inner {
    fn idle_connections(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Plans are pinned to index look-ups: a plan made while the table was empty would
/// otherwise scan it for ever, and one made for the arrays at hand (custom) walks the
/// table and searches the arrays, which is quadratic. What every connection has is in the
/// options it is given.
pub(crate) async fn open_connection(
    options: &PgConnectOptions,
    limit: Duration,
) -> Result<PgConnection, LedgerError> {
    let options = options.clone().options([
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
    ]);
    match tokio::time::timeout(limit, PgConnection::connect_with(&options)).await {
        Ok(conn) => conn.context("opening a connection"),
        Err(_) => Err(LedgerError::timeout("opening a connection", limit)),
    }
}
