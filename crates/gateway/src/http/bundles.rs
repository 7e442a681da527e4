//! Policy bundles: publishing, listing, rolling back. For administrators only.
//!
//! What must stay true: what is published can be loaded. A bundle that no kernel could
//! load would keep every later change out of force, so the kernel is asked to try it with
//! its own files before it is committed. Afterwards each kernel says whether it has loaded
//! it, and the answer says that and no more.

use std::sync::Arc;

use airlock_api::{
    ActiveBundle, BundleChange, BundlePage, FieldProblem, KernelProbe, KernelStatus, LoadedBy,
    PolicyStatus, PublishRequest, RollbackRequest,
};
use airlock_ledger::{Bundle, Ledger, NewBundle, RolledBack};
use airlock_model::Timestamp;
use airlock_proto::own::TriedBundle;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::jobs::RETRY_FOR;
use super::{App, HandlerResult};
use crate::auth::Caller;
use crate::http::decode::decode_json_object;
use crate::http::problem::Problem;
use crate::limits::admission;
use crate::policy::bundle_check;
use crate::policy::kernel_status;
use crate::policy::query;
use crate::retry::{ledger_problem, retry_until};

const MAX_CONTENT: usize = 1 << 20;
const MAX_NAME: usize = 64;
const MAX_NOTE: usize = 1_024;
/// JSON doubles a text's quotes and line ends at worst, six times a control character.
const PUBLISH_BYTES: usize = 4 * MAX_CONTENT;
const ROLLBACK_BYTES: usize = 16 << 10;

/// Active is what the kernels have, not what the ledger wants.
fn to_bundle_change(bundle: &Bundle, loaded_by: Vec<LoadedBy>) -> BundleChange {
    let in_force = kernel_status::is_loaded_by_all(&loaded_by);
    BundleChange::Active {
        bundle: airlock_api::Bundle {
            active: bundle.active && in_force,
            ..to_api_bundle(bundle, false)
        },
        in_force,
        loaded_by,
    }
}

fn to_api_bundle(b: &Bundle, content: bool) -> airlock_api::Bundle {
    airlock_api::Bundle {
        name: b.name.clone(),
        version: b.version,
        active: b.active,
        position: b.position,
        sha256: b.sha256.clone(),
        signature: b.signature.as_ref().map(|s| STANDARD.encode(s)),
        key_id: b.key_id.clone(),
        note: b.note.clone(),
        published_by: b.published_by.clone(),
        published_at: b.published_at.to_rfc3339(),
        content: content.then(|| b.content.clone()),
        loaded: None,
        not_loaded_because: None,
    }
}

/// Whether these bundles make a policy with the kernel's own files; the problem names
/// `field` and the places.
async fn try_bundles(app: &App, field: &str, bundles: Vec<TriedBundle>) -> Result<(), Problem> {
    if !app.kernel.is_configured() {
        // Nobody to ask: the answer will say that no kernel has loaded it.
        return Ok(());
    }
    let answer = app.kernel.try_bundles(bundles).await?;
    if answer.refused.is_empty() {
        return Ok(());
    }
    let mistake = |m: airlock_proto::own::PolicyMistake| {
        let hint = match m.hint.as_str() {
            "" => String::new(),
            hint => format!(" ({hint})"),
        };
        FieldProblem {
            field: format!("{}:{}:{}", m.file, m.line, m.column),
            message: format!("{}: {}{hint}", m.field, m.message),
        }
    };
    let mistakes = answer.mistakes.into_iter().map(mistake).collect();
    Err(Problem::unloadable_policy(field, answer.refused, mistakes))
}

/// Going back must not make it worse. What is refused already may go to another refusal:
/// with two bad bundles, taking one out is the way to good.
async fn try_rollback(
    app: &App,
    ledger: &Ledger,
    name: &str,
    to: Option<u64>,
) -> Result<(), Problem> {
    let active = ledger
        .active_bundles()
        .await
        .map_err(|e| ledger_problem(&e))?;
    let versions = ledger
        .bundles(Some(name))
        .await
        .map_err(|e| ledger_problem(&e))?;
    let then = bundle_check::bundles_after_rollback(name, to, &versions, &active);
    match try_bundles(app, "name", then).await {
        Err(worse)
            if try_bundles(app, "name", bundle_check::active_bundles(&active))
                .await
                .is_ok() =>
        {
            Err(worse)
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) async fn publish_bundle(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    admission::check_content_type(&parts.headers)?;
    let mut admitted = app.admission.begin_write(&caller)?;
    let text = admitted
        .read_body(&parts.headers, body, PUBLISH_BYTES, "content")
        .await?;
    let body: PublishRequest = decode_json_object(&text)?;
    validate_publish_request(&body)?;
    let signature = verify_signature(&app, &body)?;
    let ledger = app.links.require_ledger()?;
    let until = Instant::now() + RETRY_FOR;
    let others = retry_until(until, || ledger.active_bundles())
        .await
        .map_err(|e| ledger_problem(&e))?;
    let tried = bundle_check::bundles_after_publish(
        &body.name,
        body.position,
        &body.content,
        signature.as_deref(),
        &others,
    );
    let refused = |wrong: String| Problem::unloadable_policy("content", wrong, Vec::new());
    let alone = tried.iter().find(|b| b.content == body.content);
    bundle_check::check_loadable(alone.map(std::slice::from_ref).unwrap_or_default())
        .map_err(refused)?;
    bundle_check::check_loadable(&tried).map_err(refused)?;
    try_bundles(&app, "content", tried).await?;
    let sha256: String = Sha256::digest(body.content.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let new = NewBundle {
        name: body.name,
        position: body.position,
        content: body.content,
        sha256,
        signature,
        key_id: body.key_id,
        note: body.note.unwrap_or_default(),
        by: caller.name,
        principal: caller.principal,
    };
    // Repeating it is safe: the same content again is the same version.
    let bundle = retry_until(until, || ledger.publish_bundle(&new))
        .await
        .map_err(|e| ledger_problem(&e))?;
    app.waker
        .publish_policy_change("policy.published", &bundle.name, bundle.version);
    let loaded_by = kernel_status::wait_until_loaded(&ledger).await;
    Ok((
        StatusCode::CREATED,
        Json(to_bundle_change(&bundle, loaded_by)),
    )
        .into_response())
}

fn validate_publish_request(body: &PublishRequest) -> Result<(), Problem> {
    let name = &body.name;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        let message = format!("must be 1 to {MAX_NAME} letters, digits, dots, dashes, underscores");
        return Err(Problem::invalid_field("name", message));
    }
    if body.content.len() > MAX_CONTENT {
        let message = format!("{} bytes; at most {MAX_CONTENT}", body.content.len());
        return Err(Problem::too_large("content", message));
    }
    if body.note.as_ref().is_some_and(|n| n.len() > MAX_NOTE) {
        return Err(Problem::invalid_field(
            "note",
            format!("at most {MAX_NOTE} bytes"),
        ));
    }
    if body
        .key_id
        .as_ref()
        .is_some_and(|k| k.len() > MAX_NAME || k.contains('\0'))
    {
        return Err(Problem::invalid_field(
            "key_id",
            format!("at most {MAX_NAME} bytes"),
        ));
    }
    Ok(())
}

/// The signature's bytes, verified where this gateway knows the keys.
fn verify_signature(app: &App, body: &PublishRequest) -> Result<Option<Vec<u8>>, Problem> {
    let Some(text) = body.signature.as_deref().filter(|s| !s.is_empty()) else {
        if app.policy.require_signature {
            return Err(Problem::invalid_field("signature", "is required here"));
        }
        return Ok(None);
    };
    let bytes = decode_base64(text).ok_or_else(|| {
        Problem::invalid_field(
            "signature",
            "must be the 64 bytes of an Ed25519 signature, in base64 or hexadecimal",
        )
    })?;
    if !app.bundle_keys.is_empty() {
        bundle_check::verify_bundle_signature(body.content.as_bytes(), text, &app.bundle_keys)
            .map_err(|wrong| Problem::invalid_field("signature", wrong))?;
    }
    Ok(Some(bytes))
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let bytes = if text.len() == 128 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        (0..64)
            .map(|i| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok())
            .collect::<Option<Vec<u8>>>()?
    } else {
        STANDARD.decode(text).ok()?
    };
    (bytes.len() == 64).then_some(bytes)
}

pub(super) async fn list_bundles(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> HandlerResult {
    let asked = query::parse_bundle_listing(request.uri())?;
    let _admitted = app.admission.begin_read(&caller)?;
    let ledger = app.links.require_ledger()?;
    let bundles = retry_until(Instant::now() + RETRY_FOR, || {
        ledger.bundles(asked.name.as_deref())
    })
    .await
    .map_err(|e| ledger_problem(&e))?;
    let generation = ledger
        .bundles_generation()
        .await
        .map_err(|e| ledger_problem(&e))?;
    let there = ledger.kernels().await.map_err(|e| ledger_problem(&e))?;
    let loaded_by: Vec<LoadedBy> = there
        .iter()
        .map(|k| kernel_status::to_loaded_by(k, generation))
        .collect();
    let why = match loaded_by.iter().find(|k| !k.loaded) {
        Some(k) => Some(format!(
            "{}: {}",
            k.kernel,
            k.reason.as_deref().unwrap_or_default()
        )),
        None if loaded_by.is_empty() => Some("no safety kernel has said so".to_owned()),
        None => None,
    };
    let item = |b| {
        let mut shown = to_api_bundle(b, asked.content);
        if shown.active {
            shown.loaded = Some(why.is_none());
            shown.not_loaded_because = why.clone();
        }
        shown
    };
    let items = bundles.iter().map(item).collect();
    Ok(Json(BundlePage {
        items,
        next_cursor: None,
    })
    .into_response())
}

pub(super) async fn roll_back_bundle(
    State(app): State<Arc<App>>,
    caller: Caller,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> HandlerResult {
    let (parts, body) = request.into_parts();
    let Ok(Path(name)) = path else {
        return Err(Problem::no_such_bundle("that"));
    };
    if name.contains('\0') {
        return Err(Problem::no_such_bundle("that"));
    }
    let mut admitted = app.admission.begin_write(&caller)?;
    let text = admitted
        .read_body(&parts.headers, body, ROLLBACK_BYTES, "to")
        .await?;
    let body: RollbackRequest = if text.is_empty() {
        RollbackRequest::default()
    } else {
        admission::check_content_type(&parts.headers)?;
        decode_json_object(&text)?
    };
    let ledger = app.links.require_ledger()?;
    try_rollback(&app, &ledger, &name, body.to).await?;
    // Going back one step is not the same when it is done twice, so it is tried once.
    let done = ledger
        .rollback_bundle(&name, body.to, caller.as_actor())
        .await
        .map_err(|e| ledger_problem(&e))?;
    match done {
        RolledBack::To(bundle) => {
            app.waker
                .publish_policy_change("policy.rolled_back", &name, bundle.version);
            let loaded_by = kernel_status::wait_until_loaded(&ledger).await;
            Ok(Json(to_bundle_change(&bundle, loaded_by)).into_response())
        }
        RolledBack::Withdrawn => {
            app.waker
                .publish_policy_change("policy.withdrawn", &name, 0);
            let loaded_by = kernel_status::wait_until_loaded(&ledger).await;
            Ok(Json(BundleChange::Withdrawn {
                name,
                version: None,
                active: false,
                in_force: kernel_status::is_loaded_by_all(&loaded_by),
                loaded_by,
            })
            .into_response())
        }
        RolledBack::NotFound => Err(Problem::no_such_bundle(&name)),
    }
}

/// What the policy is made of, and how each kernel stands to it.
pub(super) async fn get_policy_status(State(app): State<Arc<App>>) -> HandlerResult {
    let ledger = app.links.require_ledger()?;
    let generation = ledger
        .bundles_generation()
        .await
        .map_err(|e| ledger_problem(&e))?;
    let bundles = ledger
        .active_bundles()
        .await
        .map_err(|e| ledger_problem(&e))?;
    let there = ledger.kernels().await.map_err(|e| ledger_problem(&e))?;
    let asked = app.kernel.fetch_active_policy().await;
    let mut in_force = matches!(&asked, Ok(a) if a.refused.is_empty() && !a.snapshot.is_empty());
    let mut kernels = Vec::new();
    for kernel in &there {
        let LoadedBy {
            kernel: name,
            snapshot,
            loaded,
            reason,
        } = kernel_status::to_loaded_by(kernel, generation);
        in_force &= loaded;
        kernels.push(KernelStatus {
            kernel: name,
            snapshot,
            loaded,
            reason,
            loaded_since: kernel.loaded_at.map(Timestamp::to_rfc3339),
            refused_since: kernel.refused_at.map(Timestamp::to_rfc3339),
            files: kernel.report.files.clone(),
            counts_alone_because: kernel.report.alone.clone(),
            seen_at: kernel.seen_at.to_rfc3339(),
        });
    }
    let bundles = bundles
        .into_iter()
        .map(|b| ActiveBundle {
            name: b.name,
            version: b.version,
            position: b.position,
        })
        .collect();
    let asked = match asked {
        Ok(a) => KernelProbe {
            reachable: true,
            snapshot: Some(a.snapshot),
            reason: Some(a.refused).filter(|r| !r.is_empty()),
        },
        Err(why) => KernelProbe {
            reachable: false,
            snapshot: None,
            reason: Some(why),
        },
    };
    Ok(Json(PolicyStatus {
        in_force,
        asked,
        bundles,
        kernels,
    })
    .into_response())
}
