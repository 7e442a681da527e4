//! `airlock saga …`: what was recorded to be undone, how far that has come, and deciding
//! about it.

mod follow;
mod render;

use std::num::NonZeroU32;

use airlock_client::{ReceiptDocument, Saga, SagaListRequest, SagaReceipt};
use airlock_model::{RollbackMode, SagaState, Timestamp};
use clap::{Args, Subcommand};
use sha2::{Digest, Sha256};

use self::follow::{SagaUpdates, follow_saga};
use crate::args::{Api, parse_timestamp};
use crate::exit::Exit;
use crate::explain::Explained;
use crate::follow::Seen;
use crate::session::{self, CommandResult, Failure, Session};
use crate::terminal::{Terminal, one_line};

const EXIT_CODES: &str = "\
Exit codes:
  0  the request was answered; of watch: everything was undone, or the saga was completed
  1  the state of the saga does not allow it; of watch: it is stuck, or something was not undone
  2  the request is invalid: arguments, key, unknown saga
  3  the API cannot be reached or cannot answer now";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct SagaArgs {
    #[command(flatten)]
    pub api: Api,
    /// Act for this tenant; needs an administrator's key
    #[arg(long, global = true)]
    pub tenant: Option<String>,
    #[command(subcommand)]
    pub action: Action,
}

#[derive(Debug, Subcommand)]
pub enum Action {
    /// List sagas, newest first
    List {
        /// Only sagas in this state: OPEN, ROLLING_BACK, ROLLED_BACK, STUCK or COMPLETED
        #[arg(long, value_parser = parse_saga_state)]
        state: Option<SagaState>,
        /// Only sagas opened after this time, in RFC 3339
        #[arg(long, value_name = "TIMESTAMP", value_parser = parse_timestamp)]
        after: Option<Timestamp>,
        /// Only sagas opened before this time, in RFC 3339
        #[arg(long, value_name = "TIMESTAMP", value_parser = parse_timestamp)]
        before: Option<Timestamp>,
        /// Maximum number of entries
        #[arg(long, value_name = "N", default_value = "20")]
        limit: NonZeroU32,
        /// Continue where an earlier list ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a saga with its compensations, newest first
    Show {
        #[arg(value_name = "WORKFLOW")]
        id: String,
    },
    /// Follow a saga until it is rolled back, stuck or completed
    Watch {
        #[arg(value_name = "WORKFLOW")]
        id: String,
    },
    /// Undo what a workflow's run has done, newest first
    Rollback {
        #[arg(value_name = "WORKFLOW")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long, required_unless_present = "dry_run")]
        reason: Option<String>,
        /// Order: sequential (the default) or parallel
        #[arg(long, value_parser = parse_mode)]
        mode: Option<RollbackMode>,
        /// Only print what would be submitted, and what the policy would decide
        #[arg(long)]
        dry_run: bool,
    },
    /// Begin the tries of what failed again, in a stuck saga
    Retry {
        #[arg(value_name = "WORKFLOW")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: Option<String>,
    },
    /// Give up the compensation that failed, and go on with the rest of a stuck saga
    Skip {
        #[arg(value_name = "WORKFLOW")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: String,
    },
    /// Give up the compensation that failed and all that is left of a stuck saga
    Resolve {
        #[arg(value_name = "WORKFLOW")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: String,
    },
    /// Declare an open saga completed: nothing of it will be undone
    Complete {
        #[arg(value_name = "WORKFLOW")]
        id: String,
        /// Reason; kept in the audit trail
        #[arg(long)]
        reason: Option<String>,
    },
    /// Show the receipt of a saga that is over, and check its digest
    Receipt {
        #[arg(value_name = "WORKFLOW")]
        id: String,
    },
}

fn parse_saga_state(text: &str) -> Result<SagaState, String> {
    text.replace('-', "_").parse()
}

fn parse_mode(text: &str) -> Result<RollbackMode, String> {
    [RollbackMode::Sequential, RollbackMode::Parallel]
        .into_iter()
        .find(|mode| mode.as_str().eq_ignore_ascii_case(text))
        .ok_or_else(|| "there are sequential and parallel".to_owned())
}

pub fn run(args: SagaArgs, terminal: Terminal) -> Exit {
    session::run_with_session(args.api, terminal, |mut session| async move {
        if let Some(tenant) = &args.tenant {
            session.client = session.client.for_tenant(tenant)?;
        }
        run_action(session, args.action).await
    })
}

async fn run_action(session: Session, action: Action) -> CommandResult {
    let client = &session.client;
    match action {
        Action::List {
            state,
            after,
            before,
            limit,
            cursor,
        } => {
            let request = SagaListRequest {
                state,
                created_after: after.map(Timestamp::to_rfc3339),
                created_before: before.map(Timestamp::to_rfc3339),
                limit: Some(limit.into()),
                cursor,
            };
            let page = client.sagas(&request).await?;
            if session.json {
                return session.print_json(&page);
            }
            let text = render::render_saga_table(&page, &session.render_context());
            session.terminal.print(&text);
            if let Some(cursor) = &page.next_cursor {
                let text = format!("more entries: --cursor {cursor}");
                session.terminal.hint(&text);
            }
            Ok(Exit::Done)
        }
        Action::Show { id } => print_saga(&session, &client.saga(&id).await?),
        Action::Watch { id } => watch_saga(&session, &id).await,
        Action::Rollback {
            id, dry_run: true, ..
        } => {
            let plan = client.plan_saga_rollback(&id).await?;
            if session.json {
                return session.print_json(&plan);
            }
            session.terminal.print(&render::render_plan(&plan));
            Ok(Exit::Done)
        }
        Action::Rollback {
            id,
            reason,
            mode,
            dry_run: false,
        } => {
            let reason = reason.unwrap_or_default();
            let saga = client.roll_back_saga(&id, &reason, mode).await?;
            print_action(&session, &saga)
        }
        Action::Retry { id, reason } => {
            let saga = client.retry_saga(&id, reason.as_deref()).await?;
            print_action(&session, &saga)
        }
        Action::Skip { id, reason } => {
            print_action(&session, &client.skip_compensation(&id, &reason).await?)
        }
        Action::Resolve { id, reason } => {
            print_action(&session, &client.resolve_saga(&id, &reason).await?)
        }
        Action::Complete { id, reason } => {
            let saga = client.complete_saga(&id, reason.as_deref()).await?;
            print_action(&session, &saga)
        }
        Action::Receipt { id } => print_receipt(&session, &client.saga_receipt(&id).await?),
    }
}

fn print_saga(session: &Session, saga: &Saga) -> CommandResult {
    if session.json {
        return session.print_json(saga);
    }
    let text = render::render_saga(saga, &session.render_context());
    session.terminal.print(&text);
    if saga.state == SagaState::Stuck {
        let id = one_line(&saga.workflow_id);
        session.terminal.hint(&format!(
            "airlock saga retry {id} tries again; skip and resolve give up"
        ));
    }
    Ok(Exit::Done)
}

/// The saga after somebody acted on it.
fn print_action(session: &Session, saga: &Saga) -> CommandResult {
    print_saga(session, saga)?;
    if saga.state == SagaState::RollingBack {
        let id = one_line(&saga.workflow_id);
        session
            .terminal
            .hint(&format!("airlock saga watch {id} follows it"));
    }
    Ok(Exit::Done)
}

/// Shows each change as it happens, then how it came out.
async fn watch_saga(session: &Session, id: &str) -> CommandResult {
    let mut updates = SagaUpdates::default();
    let saga = follow_saga(&session.client, id, |saga| {
        let lines = updates.new_lines(saga, session.terminal.out);
        if lines.is_empty() {
            return Seen::Unchanged;
        }
        if !session.json {
            session.terminal.print(&lines.join("\n"));
        }
        Seen::New
    })
    .await?;
    if session.json {
        session.print_json(&saga)?;
    }
    Ok(exit_for(&saga))
}

/// For whoever followed a saga that is at rest now.
fn exit_for(saga: &Saga) -> Exit {
    match saga.state {
        SagaState::Completed => Exit::Done,
        SagaState::RolledBack if saga.complete => Exit::Done,
        SagaState::RolledBack | SagaState::Stuck => Exit::Failed,
        SagaState::Open | SagaState::RollingBack => Exit::Unfinished,
    }
}

fn print_receipt(session: &Session, receipt: &SagaReceipt) -> CommandResult {
    let digest = Sha256::digest(receipt.document.get().as_bytes());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if digest != receipt.sha256 {
        return Err(receipt_failure(format!(
            "the document's SHA-256 is {digest}, and not {} as the receipt says",
            one_line(&receipt.sha256)
        )));
    }
    if session.json {
        return session.print_json(receipt);
    }
    let document: ReceiptDocument = serde_json::from_str(receipt.document.get())
        .map_err(|e| receipt_failure(format!("reading the receipt: {e}")))?;
    let text = render::render_receipt(&document, &digest, &session.render_context());
    session.terminal.print(&text);
    Ok(Exit::Done)
}

fn receipt_failure(text: String) -> Failure {
    Failure::Explained(Explained {
        text,
        hint: None,
        exit: Exit::Failed,
    })
}

#[cfg(test)]
mod tests;
