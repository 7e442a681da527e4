//! Publishes the audit trail on `sys.audit.<kind>`, behind its writers.
//!
//! The trail is written in the transaction of the deed, by the scheduler and by every
//! gateway. One of all leaders (the first shard's) reads it after the commit and publishes
//! it, so what must stay true holds whoever wrote it: an entry is published at least once,
//! in the order of the trail, and never before it is committed. The cursor is durable;
//! an entry published again after a take-over has the same message id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use airlock_bus::Outgoing;
use airlock_bus::subjects::Subject;
use airlock_ledger::{AUDIT, AuditEntry, Page, Tail};
use airlock_model::Shard;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{AlertSeverity, SystemAlert};
use airlock_proto::packet;

use crate::term::{Stores, TermContext};

const POLL: Duration = Duration::from_millis(500);
/// Entries published at once.
const PAGE: u32 = 200;

/// Runs until the term is over. On other shards than the first it only waits for that.
pub async fn run(ctx: Arc<TermContext>, stores: Arc<Stores>) -> anyhow::Result<()> {
    if ctx.shard != Shard(0) {
        ctx.over.cancelled().await;
        return Ok(());
    }
    let mut tail = stores.ledger.leader_tail(AUDIT);
    loop {
        match tail.lag().await {
            Ok(lag) => ctx.metrics.set_log_lag("audit", lag),
            Err(error) => tracing::warn!(%error, "reading the audit lag failed, retrying"),
        }
        let more = match publish_audit_page(&ctx, &stores, &mut tail).await {
            Ok(more) => more,
            Err(error) => {
                tracing::warn!(%error, "publishing the audit trail failed, retrying");
                false
            }
        };
        if ctx.over.is_cancelled() || (!more && !ctx.sleep_unless_over(POLL).await) {
            return Ok(());
        }
    }
}

/// Whether there is more.
async fn publish_audit_page(
    ctx: &TermContext,
    stores: &Stores,
    tail: &mut Tail<AuditEntry>,
) -> anyhow::Result<bool> {
    let Page::Entries(entries) = tail.next(PAGE).await? else {
        // The trail is never trimmed: there is nothing that it has missed.
        tail.finish_rescan().await?;
        return Ok(true);
    };
    let Some((last, _)) = entries.last() else {
        return Ok(false);
    };
    let (last, more) = (*last, entries.len() == PAGE as usize);
    let messages = entries
        .into_iter()
        .map(|(_, e)| to_audit_message(ctx, e))
        .collect();
    for sent in stores.bus.publish_all(messages).await {
        sent?;
    }
    tail.advance(last).await?;
    Ok(more)
}

fn to_audit_message(ctx: &TermContext, entry: AuditEntry) -> Outgoing {
    let msg_id = format!("audit-{}", entry.id);
    // An entry about a job is found by the job's id, one about the policy stands alone.
    let trace_id = entry.job_id.clone().unwrap_or_else(|| msg_id.clone());
    let alert = SystemAlert {
        message: entry.kind.clone(),
        severity: AlertSeverity::Info.into(),
        source_component: "audit".to_owned(),
        details: to_audit_fields(&entry),
        ..SystemAlert::default()
    };
    Outgoing {
        subject: Subject::Audit(entry.kind).to_string(),
        payload: packet::encode(&ctx.sender, &trace_id, entry.at, Payload::Alert(alert)),
        msg_id: Some(msg_id),
        traceparent: None,
    }
}

/// The entry's own fields, and who, when and what about. The former cannot replace the
/// latter.
fn to_audit_fields(entry: &AuditEntry) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    if let Some(fields) = entry.detail.as_object() {
        for (name, value) in fields {
            let text = match value {
                serde_json::Value::Null => continue,
                serde_json::Value::String(text) => text.clone(),
                serde_json::Value::Bool(_)
                | serde_json::Value::Number(_)
                | serde_json::Value::Array(_)
                | serde_json::Value::Object(_) => value.to_string(),
            };
            all.insert(name.clone(), text);
        }
    }
    let facts = [
        ("audit_id", Some(entry.id.to_string())),
        ("kind", Some(entry.kind.clone())),
        ("at", Some(entry.at.to_rfc3339())),
        ("actor", Some(entry.actor.clone())),
        ("tenant_id", entry.tenant.clone()),
        ("job_id", entry.job_id.clone()),
    ];
    for (name, value) in facts {
        if let Some(value) = value {
            all.insert(name.to_owned(), value);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use airlock_model::Timestamp;

    use super::*;

    #[test]
    fn an_entrys_detail_cannot_replace_its_actor() {
        let entry = AuditEntry {
            id: 7,
            at: Timestamp(0),
            kind: "approval.approved".to_owned(),
            tenant: Some("acme".to_owned()),
            actor: "bob".to_owned(),
            job_id: Some("j".to_owned()),
            detail: serde_json::json!({
                "actor": "root", "reason": "fine", "round": 2, "constraints": null,
            }),
        };
        let details = to_audit_fields(&entry);
        let get = |name: &str| details.get(name).map(String::as_str);
        assert_eq!(get("actor"), Some("bob"));
        assert_eq!(get("audit_id"), Some("7"));
        assert_eq!(get("reason"), Some("fine"));
        assert_eq!(get("round"), Some("2"));
        assert_eq!(get("constraints"), None);
        assert_eq!((get("tenant_id"), get("job_id")), (Some("acme"), Some("j")));
    }
}
