//! Publishing pieces of policy, and going back.

use std::path::Path;

use airlock_client::{Bundle, PublishRequest};

use super::local;
use crate::exit::Exit;
use crate::explain::Explained;
use crate::render::{table, when};
use crate::session::{Answer, Failure, Session};
use crate::terminal::one_line;

/// What is said about a bundle besides its content.
pub struct New {
    pub name: Option<String>,
    pub position: i32,
    pub signature: Option<String>,
    pub key_id: Option<String>,
    pub note: Option<String>,
}

fn told(unusable: local::Unusable) -> Failure {
    Failure::Told(Explained {
        text: unusable.text,
        hint: None,
        exit: unusable.exit,
    })
}

pub async fn publish(session: &Session, file: &Path, new: New) -> Answer {
    // Mistakes are found here, with their places, before anything is sent.
    local::load(&[file.to_path_buf()]).map_err(told)?;
    let content = local::text(file).map_err(told)?;
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
            let text = local::text(Path::new(path)).map_err(told)?;
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
    let bundle = session.client.publish(&request).await?;
    shown(session, &bundle)
}

pub async fn rollback(session: &Session, name: &str, to: Option<u64>) -> Answer {
    let bundle = session.client.rollback(name, to).await?;
    shown(session, &bundle)
}

fn shown(session: &Session, bundle: &Bundle) -> Answer {
    if session.json {
        return session.print(bundle);
    }
    let name = &bundle.name;
    let text = match bundle.version {
        Some(version) => format!("{name} version {version} is in force"),
        None => format!("no version of {name} is in force"),
    };
    session.terminal.say(&one_line(&text));
    session
        .terminal
        .hint("airlock policy snapshots shows when the kernel has it");
    Ok(Exit::Done)
}

pub async fn list(session: &Session, name: Option<&str>) -> Answer {
    let page = session.client.bundles(name).await?;
    if session.json {
        return session.print(&page);
    }
    if page.items.is_empty() {
        session.terminal.say("no bundles");
        return Ok(Exit::Done);
    }
    let scene = session.scene();
    let rows = page.items.iter().map(|b| {
        [
            one_line(&b.name),
            b.version.map(|v| v.to_string()).unwrap_or_default(),
            if b.active { "in force" } else { "" }.to_owned(),
            b.position.to_string(),
            if b.signature.is_some() { "signed" } else { "" }.to_owned(),
            one_line(&b.published_by),
            when(&b.published_at, &scene),
            one_line(&b.note),
        ]
    });
    let header = [
        "BUNDLE",
        "VERSION",
        "",
        "POSITION",
        "",
        "BY",
        "PUBLISHED",
        "NOTE",
    ];
    session.terminal.say(&table(header, rows));
    Ok(Exit::Done)
}
