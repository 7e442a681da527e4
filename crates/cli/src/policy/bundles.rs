//! Publishing policy bundles, and rolling them back.

use std::path::Path;

use airlock_client::{BundleChange, ClientError, PublishRequest};

use super::local;
use crate::exit::Exit;
use crate::explain::Explained;
use crate::render::{relative_to_now, render_table};
use crate::session::{CommandResult, Failure, Session};
use crate::terminal::one_line;

/// What describes a bundle besides its content.
pub struct BundleOptions {
    pub name: Option<String>,
    pub position: i32,
    pub signature: Option<String>,
    pub key_id: Option<String>,
    pub note: Option<String>,
}

fn into_failure(unusable: local::Unusable) -> Failure {
    Failure::Explained(Explained {
        text: unusable.text,
        hint: None,
        exit: unusable.exit,
    })
}

pub async fn publish_bundle(session: &Session, file: &Path, new: BundleOptions) -> CommandResult {
    // Mistakes are found here, with their places, before anything is sent.
    local::load_policy(&[file.to_path_buf()]).map_err(into_failure)?;
    let content = local::read_text_file(file).map_err(into_failure)?;
    let name = match new.name {
        Some(name) => name,
        None => file
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .ok_or_else(|| Failure::usage("--name is needed"))?,
    };
    let signature = match new
        .signature
        .as_deref()
        .map(|s| s.strip_prefix('@').ok_or(s))
    {
        None => None,
        Some(Err(given)) => Some(given.to_owned()),
        Some(Ok(path)) => {
            let text = local::read_text_file(Path::new(path)).map_err(into_failure)?;
            Some(text.trim().to_owned())
        }
    };
    let request = PublishRequest {
        name,
        content,
        position: new.position,
        signature,
        key_id: new.key_id,
        note: new.note,
    };
    let bundle = session
        .client
        .publish(&request)
        .await
        .map_err(rejection_to_failure)?;
    print_bundle_change(session, &bundle)
}

pub async fn rollback_bundle(session: &Session, name: &str, to: Option<u64>) -> CommandResult {
    let bundle = session
        .client
        .rollback(name, to)
        .await
        .map_err(rejection_to_failure)?;
    print_bundle_change(session, &bundle)
}

/// A policy that no kernel could load is no wrong request: nothing was changed.
fn rejection_to_failure(error: ClientError) -> Failure {
    match error {
        ClientError::Problem(problem) if problem.status == 422 => Failure::Explained(Explained {
            text: format!("nothing was changed: {}", problem.detail),
            hint: None,
            exit: Exit::Failed,
        }),
        other => other.into(),
    }
}

fn print_bundle_change(session: &Session, change: &BundleChange) -> CommandResult {
    let in_force = change.in_force();
    let exit = if in_force { Exit::Done } else { Exit::Failed };
    if session.json {
        session.print_json(change)?;
        return Ok(exit);
    }
    let name = change.name();
    let what = match change.version() {
        Some(version) => format!("{name} version {version}"),
        None => format!("the withdrawal of {name}"),
    };
    let (all, loaded) = (
        change.loaded_by().len(),
        change.loaded_by().iter().filter(|k| k.loaded).count(),
    );
    let text = if in_force {
        format!("{what} is active: loaded by {loaded} of {all} kernels")
    } else {
        format!("{what} is published, but NOT active: loaded by {loaded} of {all} kernels")
    };
    session.terminal.print(&one_line(&text));
    for kernel in change.loaded_by().iter().filter(|k| !k.loaded) {
        let reason = kernel.reason.as_deref().unwrap_or_default();
        let line = format!("  {}: {reason}", kernel.kernel);
        session.terminal.print(&one_line(&line));
    }
    if !in_force {
        session
            .terminal
            .hint("airlock policy status shows when the kernels have it");
    }
    Ok(exit)
}

pub async fn print_status(session: &Session) -> CommandResult {
    let status = session.client.policy_status().await?;
    let exit = if status.in_force {
        Exit::Done
    } else {
        Exit::Failed
    };
    if session.json {
        session.print_json(&status)?;
        return Ok(exit);
    }
    let say = |line: String| session.terminal.print(&one_line(&line));
    say(match status.in_force {
        true => "the policy is active".to_owned(),
        false => "the policy is NOT active on every kernel".to_owned(),
    });
    let reason = status.asked.reason.as_deref().unwrap_or_default();
    match (&status.asked.snapshot, status.asked.reachable) {
        (Some(snapshot), true) => say(format!(
            "  the kernel of this gateway has {snapshot} {reason}"
        )),
        (_, _) => say(format!("  the kernel cannot be reached: {reason}")),
    }
    for bundle in &status.bundles {
        say(format!(
            "  bundle {} version {}",
            bundle.name, bundle.version
        ));
    }
    let ctx = session.render_context();
    let since = |at: &Option<String>| {
        at.as_deref()
            .map(|at| relative_to_now(at, &ctx))
            .unwrap_or_default()
    };
    let rows = status.kernels.iter().map(|k| {
        [
            one_line(&k.kernel),
            one_line(&k.snapshot),
            since(&k.loaded_since),
            since(&k.refused_since),
            one_line(k.reason.as_deref().unwrap_or_default()),
            one_line(&k.files.join(", ")),
        ]
    });
    let header = [
        "KERNEL",
        "SNAPSHOT",
        "LOADED SINCE",
        "REJECTED SINCE",
        "REASON",
        "FILES",
    ];
    session.terminal.print(&render_table(header, rows));
    Ok(exit)
}

pub async fn list_bundles(session: &Session, name: Option<&str>) -> CommandResult {
    let page = session.client.bundles(name).await?;
    if session.json {
        return session.print_json(&page);
    }
    if page.items.is_empty() {
        session.terminal.print("no bundles");
        return Ok(Exit::Done);
    }
    let ctx = session.render_context();
    let rows = page.items.iter().map(|b| {
        [
            one_line(&b.name),
            b.version.to_string(),
            if b.active { "active" } else { "" }.to_owned(),
            match (b.loaded, &b.not_loaded_because) {
                (Some(true), _) => "yes".to_owned(),
                (Some(false), Some(why)) => one_line(&format!("no: {why}")),
                (Some(false), None) => "no".to_owned(),
                (None, _) => String::new(),
            },
            b.position.to_string(),
            if b.signature.is_some() { "yes" } else { "no" }.to_owned(),
            one_line(&b.published_by),
            relative_to_now(&b.published_at, &ctx),
            one_line(&b.note),
        ]
    });
    let header = [
        "BUNDLE",
        "VERSION",
        "STATUS",
        "LOADED",
        "POSITION",
        "SIGNED",
        "PUBLISHED BY",
        "PUBLISHED",
        "NOTE",
    ];
    session.terminal.print(&render_table(header, rows));
    Ok(Exit::Done)
}
