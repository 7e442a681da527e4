//! Waiting for a condition, with a bound, and with the last state seen in the failure.
//!
//! Tests never sleep and hope. They say what they wait for and how long it may
//! take; when it does not come about, the failure tells the last state seen,
//! which is nearly always the explanation.

use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::dir::new_failure;

/// The outcome of one check.
#[derive(Debug)]
pub enum Seen<T> {
    /// It has come about.
    Done(T),
    /// Not yet; this is how things stand.
    NotYet(String),
    /// It never will; waiting on is pointless, for this reason.
    Never(String),
}

impl Seen<()> {
    /// Done when `condition` holds; `state` says how things stand if not.
    pub fn when(condition: bool, state: impl Display) -> Self {
        if condition {
            Self::Done(())
        } else {
            Self::NotYet(state.to_string())
        }
    }
}

/// Repeats `check` until it is done, at most for `bound`.
///
/// An error from `check` counts as "not yet" and is shown as the last state:
/// while servers are being broken, a refused connection is an answer, not a
/// reason to give up. [`Seen::Never`] gives up at once.
pub async fn eventually<T, F, Fut>(bound: Duration, what: &str, mut check: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<Seen<T>>>,
{
    let started = Instant::now();
    let mut pause = Duration::from_millis(2);
    let mut last = String::from("nothing: the first check did not return");
    loop {
        let left = bound.saturating_sub(started.elapsed());
        match tokio::time::timeout(left, check()).await {
            Ok(Ok(Seen::Done(value))) => return Ok(value),
            Ok(Ok(Seen::NotYet(state))) => last = state,
            Ok(Ok(Seen::Never(reason))) => {
                return Err(new_failure(format!("{what} will not come about: {reason}")));
            }
            Ok(Err(error)) => last = format!("error: {error:#}"),
            Err(_) => last.push_str(" (and a last check that did not return in time)"),
        }
        if started.elapsed() >= bound {
            let text = format!("timed out after {bound:?} waiting for {what}; last seen: {last}");
            return Err(new_failure(text));
        }
        let left = bound.saturating_sub(started.elapsed());
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_value_as_soon_as_it_is_there() {
        let mut checks = 0;
        let value = eventually(Duration::from_secs(5), "three checks", || {
            checks += 1;
            let now = checks;
            async move {
                match now {
                    1 => anyhow::bail!("not even reachable"),
                    2 => Ok(Seen::NotYet(format!("check {now}"))),
                    n => Ok(Seen::Done(n)),
                }
            }
        })
        .await
        .expect("comes about");
        assert_eq!(value, 3);
    }

    #[tokio::test]
    async fn says_what_was_last_seen() {
        let error = eventually(Duration::from_millis(20), "the moon", || async {
            Ok(Seen::when(false, "clouds"))
        })
        .await
        .expect_err("never comes");
        let text = error.to_string();
        assert!(
            text.contains("the moon") && text.contains("clouds"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_check_that_hangs_is_cut_off() {
        let error = eventually::<(), _, _>(Duration::from_millis(20), "an answer", || {
            std::future::pending()
        })
        .await
        .expect_err("hangs");
        assert!(error.to_string().contains("did not return"), "{error}");
    }

    #[tokio::test]
    async fn gives_up_at_once_when_it_never_will() {
        let hour = Duration::from_secs(3600);
        let error = eventually::<(), _, _>(hour, "a reply", || async {
            Ok(Seen::Never("it exited".to_owned()))
        })
        .await
        .expect_err("gives up");
        assert!(error.to_string().contains("it exited"), "{error}");
    }
}
