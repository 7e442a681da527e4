//! The shape of the tree: dependencies point one way, and each technology has one home.
//!
//! What must stay true: services meet on the bus, over gRPC or in the ledger, never by
//! linking one another; SQL, Redis keys and subjects are each written in one crate. A
//! review forgets such rules; this does not. Tests of a crate may use what they like,
//! so development dependencies are looked at only where a driver is concerned.

mod literals;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use airlock_testkit::repository_root;
use anyhow::{Context, ensure};
use serde_json::Value;

const SERVICES: &[&str] = &[
    "gateway",
    "scheduler",
    "safety-kernel",
    "output-policy",
    "saga-manager",
    "workflow-engine",
];

/// What services may build on.
const LIBRARIES: &[&str] = &[
    "api",
    "bus",
    "election",
    "guard",
    "kernel-client",
    "ledger",
    "model",
    "policy",
    "policy-source",
    "proto",
    "scan",
    "service",
    "settings",
];

/// What each crate that is no service may build on. `bus` takes its duplicate check and
/// its dead-letter sink as traits, which `guard` and `ledger` may implement.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("settings", &[]),
    ("api", &["model"]),
    ("scan", &["model", "settings"]),
    ("policy", &["model", "scan", "settings"]),
    ("policy-source", &["ledger", "policy", "settings"]),
    ("proto", &["model"]),
    ("bus", &["model", "proto", "settings"]),
    ("kernel-client", &["proto", "settings"]),
    ("guard", &["bus", "model", "proto", "settings"]),
    ("ledger", &["bus", "model", "settings"]),
    ("election", &["ledger", "model", "proto", "settings"]),
    ("service", &["model", "settings"]),
    ("worker", &["bus", "guard", "model", "proto", "settings"]),
    ("client", &["api", "model"]),
    ("testkit", &[]),
    (
        "cli",
        &["client", "model", "policy", "scan", "service", "settings"],
    ),
    (
        "bench",
        &[
            "bus", "client", "guard", "ledger", "model", "proto", "testkit", "worker",
        ],
    ),
    ("tests", &[]),
];

/// Drivers with a single home, tests included.
const HOMES: &[(&str, &str)] = &[("sqlx", "ledger"), ("async-nats", "bus"), ("fred", "guard")];

struct Dependency {
    name: String,
    normal: bool,
    optional: bool,
}

/// Every package of the workspace by its name without `airlock-`.
fn packages() -> anyhow::Result<BTreeMap<String, Vec<Dependency>>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(repository_root())
        .output()
        .context("running cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let data: Value = serde_json::from_slice(&output.stdout)?;
    let list = data["packages"].as_array().context("no packages")?;
    list.iter().map(package).collect()
}

fn package(package: &Value) -> anyhow::Result<(String, Vec<Dependency>)> {
    let full = package["name"].as_str().context("a package without name")?;
    let name = full
        .strip_prefix("airlock-")
        .with_context(|| format!("the package {full} is not called airlock-…"))?;
    let dependencies = package["dependencies"]
        .as_array()
        .context("no dependencies")?
        .iter()
        .map(|d| {
            Ok(Dependency {
                name: d["name"].as_str().context("a nameless one")?.to_owned(),
                normal: d["kind"].as_str() != Some("dev"),
                optional: d["optional"].as_bool().unwrap_or(false),
            })
        })
        .collect::<anyhow::Result<_>>()?;
    Ok((name.to_owned(), dependencies))
}

fn allowed(name: &str) -> Option<&'static [&'static str]> {
    if SERVICES.contains(&name) {
        return Some(LIBRARIES);
    }
    MAY_USE.iter().find(|(n, _)| *n == name).map(|(_, a)| *a)
}

#[test]
fn dependencies_point_one_way() -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    let packages = packages()?;
    ensure!(packages.len() > 10, "only {} packages", packages.len());
    for (name, dependencies) in &packages {
        let Some(allowed) = allowed(name) else {
            wrong.push(format!(
                "{name} has no place in the layout yet; give it one here"
            ));
            continue;
        };
        for d in dependencies.iter().filter(|d| d.normal) {
            let Some(ours) = d.name.strip_prefix("airlock-") else {
                continue;
            };
            // The command hosts every service in one process, behind a feature.
            let hosted = name == "cli" && d.optional && SERVICES.contains(&ours);
            // The SDK starts a whole Airlock for its users' tests, behind a feature.
            let for_tests = name == "worker" && d.optional && ["client", "testkit"].contains(&ours);
            if !allowed.contains(&ours) && !hosted && !for_tests {
                wrong.push(format!("{name} must not depend on {ours}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn each_driver_has_one_home() -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    for (name, dependencies) in packages()? {
        for d in &dependencies {
            if let Some((driver, home)) = HOMES.iter().find(|(driver, _)| *driver == d.name)
                && *home != name
            {
                wrong.push(format!(
                    "{name} uses {driver}, which belongs to {home} alone"
                ));
            }
            let shell = [
                "tokio",
                "sqlx",
                "async-nats",
                "fred",
                "axum",
                "tonic",
                "reqwest",
            ];
            if ["api", "model", "policy", "scan", "settings"].contains(&name.as_str())
                && d.normal
                && shell.contains(&d.name.as_str())
            {
                wrong.push(format!("{name} is pure and must not use {}", d.name));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// What a string literal of `what` looks like, and which crates may hold one; the first
/// surely does.
struct Rule {
    what: &'static str,
    homes: &'static [&'static str],
    matches: fn(&str) -> bool,
}

const RULES: &[Rule] = &[
    Rule {
        what: "SQL",
        // The testkit makes databases before there is a ledger, and the bench looks at
        // the ledger past the code whose speed it measures.
        homes: &["ledger", "testkit", "bench"],
        matches: is_sql,
    },
    Rule {
        what: "a Redis key",
        homes: &["guard"],
        matches: is_redis_key,
    },
    Rule {
        what: "a subject or a stream",
        homes: &["bus"],
        matches: is_subject,
    },
];

fn is_sql(text: &str) -> bool {
    let text = text.trim_start();
    [
        "SELECT ",
        "INSERT INTO ",
        "UPDATE ",
        "DELETE FROM ",
        "CREATE TABLE",
        "CREATE INDEX",
        "ALTER TABLE",
    ]
    .iter()
    .any(|word| text.starts_with(word))
        || (text.starts_with("WITH ") && text.contains(" AS ("))
}

fn is_redis_key(text: &str) -> bool {
    ["cordum:", "saga:", "sys:workers", "ctx:", "res:"]
        .iter()
        .any(|prefix| text.starts_with(prefix))
}

fn is_subject(text: &str) -> bool {
    [
        "sys.job.",
        "sys.saga.",
        "sys.audit.",
        "sys.heartbeat",
        "sys.handshake",
        "sys.alert",
        "sys.config.",
        "CORDUM_SYS",
        "CORDUM_JOBS",
    ]
    .iter()
    .any(|prefix| text.starts_with(prefix))
        || (text.starts_with("worker.") && text.ends_with(".jobs"))
}

#[test]
fn each_language_is_written_in_one_crate() -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    let mut seen = [false; RULES.len()];
    for entry in std::fs::read_dir(repository_root().join("crates"))? {
        let folder = entry?.path();
        let name = folder
            .file_name()
            .and_then(|n| n.to_str())
            .context("a crate without a readable name")?
            .to_owned();
        for file in rust_files(&folder.join("src"))? {
            let text = std::fs::read_to_string(&file)?;
            for (line, literal) in literals::of_production(&text) {
                for (rule, seen) in RULES.iter().zip(&mut seen) {
                    if !(rule.matches)(&literal) {
                        continue;
                    }
                    *seen |= rule.homes.first() == Some(&name.as_str());
                    if !rule.homes.contains(&name.as_str()) {
                        let file = file.strip_prefix(repository_root()).unwrap_or(&file);
                        let what = rule.what;
                        wrong.push(format!("{}:{line}: {what}: {literal:?}", file.display()));
                    }
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A scan that finds nothing at home would find nothing elsewhere either.
    ensure!(seen.iter().all(|s| *s), "the scan is blind: {seen:?}");
    Ok(())
}

/// A machine's own clock may jump. What decides about jobs asks the ledger's, or counts
/// monotonically.
#[test]
fn no_wall_clock_decides_about_a_job() -> anyhow::Result<()> {
    // Where randomness fails, the time stands in for it.
    let excepted = "crates/scheduler/src/term/mod.rs";
    let mut read = 0;
    for name in ["model", "policy", "scan", "election", "ledger", "scheduler"] {
        let folder = repository_root().join("crates").join(name).join("src");
        for file in rust_files(&folder)? {
            let place = file.strip_prefix(repository_root()).unwrap_or(&file);
            let times = std::fs::read_to_string(&file)?
                .matches("SystemTime::now")
                .count();
            let most = usize::from(place == Path::new(excepted));
            ensure!(times <= most, "{} asks the wall clock", place.display());
            read += 1;
        }
    }
    ensure!(read > 80, "only {read} files were read");
    Ok(())
}

fn rust_files(folder: &Path) -> anyhow::Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    Ok(files)
}
