//! Follows the output policy, and shows in health whether a scanner can be asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use airlock_service::{Health, Status};

use crate::term::Term;

const POLL: Duration = Duration::from_millis(500);
/// A confirmation that takes longer says too little about now.
const CONFIRM_WITHIN: Duration = Duration::from_millis(500);
/// How often an absent scanner is logged.
const LOG_EVERY: Duration = Duration::from_secs(30);

const COMPONENT: &str = "output-policy";

/// Asks twice a second until the term is over.
pub async fn follow_policy(term: Arc<Term>) -> anyhow::Result<()> {
    if !term.output.is_on() {
        term.ctx.over.cancelled().await;
        return Ok(());
    }
    let mut logged: Option<Instant> = None;
    loop {
        let answer = term.output.confirm(CONFIRM_WITHIN).await;
        match &answer {
            Ok(_) => logged = None,
            Err(error) if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) => {
                tracing::warn!(error, "output scanner cannot be asked");
                logged = Some(Instant::now());
            }
            Err(_) => {}
        }
        let refused = answer.map(|answer| answer.refused);
        show_health(&term.ctx.health, refused);
        if !term.ctx.sleep_unless_over(POLL).await {
            term.ctx.health.remove(COMPONENT);
            return Ok(());
        }
    }
}

fn show_health(health: &Health, refused: Result<String, String>) {
    let status = match refused {
        Err(why) => Status::Degraded(format!("it cannot be asked: {why}")),
        Ok(refused) if refused.is_empty() => Status::Ok,
        Ok(refused) => Status::Degraded(format!("the policy before stays active: {refused}")),
    };
    health.set(COMPONENT, status);
}

#[cfg(test)]
mod tests {
    use airlock_service::Context;

    use super::*;

    #[test]
    fn an_absent_scanner_is_shown_and_the_leader_stays_ready() {
        let ctx = Context::for_host("test");
        ctx.health.declare_ready();
        let shown = |answer| {
            show_health(&ctx.health, answer);
            assert!(ctx.health.is_ready());
            format!("{:?}", ctx.health.component_status(COMPONENT))
        };
        assert!(shown(Ok(String::new())).contains("Ok"));
        assert!(shown(Err("refused".to_owned())).contains("cannot be asked"));
        assert!(shown(Ok("line 2".to_owned())).contains("line 2"));
    }
}
