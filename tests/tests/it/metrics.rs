//! Every metric that is documented is there, with its labels, after real jobs; every one
//! that is there is documented; and the dashboard uses no other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use airlock_client::{Client, SubmitRequest};
use airlock_testkit::{Node, Seen, Service, Stack, eventually, http_get, repository_root};
use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::support::{ask_scheduler, client};

const WAIT: Duration = Duration::from_secs(60);

/// The table of those that use Redis.
const REDIS: &str = "Redis: scheduler and safety kernel";

/// A documented metric: its name as it is exposed, its type and its labels.
struct Documented {
    name: String,
    kind: String,
    labels: BTreeSet<String>,
}

/// The tables of the page, by the heading they stand under.
fn documented() -> Result<BTreeMap<String, Vec<Documented>>> {
    let page = std::fs::read_to_string(repository_root().join("docs/metrics.md"))?;
    let mut tables: BTreeMap<String, Vec<Documented>> = BTreeMap::new();
    let mut heading = String::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut heading);
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", name, kind, labels, what, ""] = cells[..]
            && (name.starts_with("`cordum_") || name.starts_with("`airlock_"))
        {
            ensure!(!what.is_empty(), "{name} is not explained");
            tables.entry(heading.clone()).or_default().push(Documented {
                name: name.trim_matches('`').to_owned(),
                kind: kind.to_owned(),
                labels: labels
                    .split(',')
                    .map(|l| l.trim().trim_matches('`').to_owned())
                    .filter(|l| !l.is_empty())
                    .collect(),
            });
        }
    }
    Ok(tables)
}

/// One line of a scrape.
struct Series<'a> {
    name: &'a str,
    labels: BTreeSet<String>,
}

fn series(text: &str) -> Vec<Series<'_>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (key, _) = line.rsplit_once(' ')?;
            let (name, labels) = key.split_once('{').unwrap_or((key, ""));
            let labels = labels
                .split("\",")
                .filter_map(|pair| pair.trim_end_matches('}').split_once('='))
                .map(|(label, _)| label.to_owned())
                .filter(|label| label != "le")
                .collect();
            Some(Series { name, labels })
        })
        .collect()
}

fn total(text: &str, beginning: &str) -> f64 {
    text.lines()
        .filter(|line| line.starts_with(beginning))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum()
}

/// What of a table is not in a scrape, or is there otherwise than documented.
fn missing(table: &[Documented], scrape: &str) -> Vec<String> {
    let found = series(scrape);
    let mut wrong = Vec::new();
    for d in table {
        let exposed = match d.kind.as_str() {
            "histogram" => format!("{}_count", d.name),
            _ => d.name.clone(),
        };
        let declared = d.name.strip_suffix("_total").unwrap_or(&d.name);
        if !scrape.contains(&format!("# TYPE {declared} {}\n", d.kind)) {
            wrong.push(format!("{} is no {}", d.name, d.kind));
        }
        let mine: Vec<_> = found.iter().filter(|s| s.name == exposed).collect();
        if mine.is_empty() {
            wrong.push(format!("{} has no series", d.name));
        }
        for s in mine {
            if s.labels != d.labels {
                wrong.push(format!("{} has the labels {:?}", d.name, s.labels));
            }
        }
        if d.kind == "counter" && !d.name.ends_with("_total") {
            wrong.push(format!("{} is a counter without its suffix", d.name));
        }
    }
    wrong
}

/// What is in a scrape and in no table.
fn undocumented(table: &[Documented], scrape: &str) -> Vec<String> {
    scrape
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            _ => name.to_owned(),
        })
        .filter(|name| !table.iter().any(|d| d.name == *name))
        .collect()
}

async fn end(client: &Client, request: &SubmitRequest, state: &str) -> Result<()> {
    let job = client.submit_wait(request, WAIT).await?;
    ensure!(job.state.to_string() == state, "{job:?}");
    Ok(())
}

/// Jobs of every kind, so that everything that is counted has something to count.
async fn work(stack: &Stack) -> Result<()> {
    let client = client(stack)?;
    end(&client, &SubmitRequest::new("job.echo"), "SUCCEEDED").await?;
    let fail = SubmitRequest::new("job.fail").payload(&json!({"kind": "fatal"}))?;
    end(&client, &fail, "FAILED").await?;
    let mut denied = SubmitRequest::new("job.echo");
    denied.risk_tags = vec!["destructive".to_owned()];
    end(&client, &denied, "DENIED").await?;
    let mut late = SubmitRequest::new("job.sleep").payload(&json!({"ms": 120_000}))?;
    late.budget = Some(serde_json::from_value(json!({"deadline_ms": 5000}))?);
    end(&client, &late, "TIMEOUT").await?;
    // Nobody listens to this one, so it waits.
    client.submit(&SubmitRequest::new("job.unheard-of")).await?;
    eventually(WAIT, "the waiting job's lane", || async {
        let scrape = ask_scheduler(stack, 0, "/metrics").await?;
        let lane = "cordum_scheduler_ready_queue_depth{\
                    pool=\"default\",tenant=\"default\",reason=\"no_workers\"} 1\n";
        Ok(Seen::when(scrape.contains(lane), "not counted"))
    })
    .await?;
    // Nobody was told of this one, so it is a forgotten one.
    let forgotten = r#"
        INSERT INTO job_request (job_id, tenant, topic, priority, shard, job_hash, spec,
                                 trace_id, traceparent, created_at)
        VALUES ('forgotten', 'default', 'job.echo', 1, 0, '\x00', '{"topic":"job.echo"}',
                'abababababababababababababababab', '', now() - interval '1 h');
        INSERT INTO job_state (job_id, shard) VALUES ('forgotten', 0)"#;
    stack.postgres().query(forgotten).await?;
    client.wait("forgotten", WAIT).await?;
    Ok(())
}

/// Without the kernel the fail mode decides.
async fn work_unasked(stack: &Stack) -> Result<()> {
    stack.kernel().kill9()?;
    let mut unasked = SubmitRequest::new("job.echo");
    unasked.risk_tags = vec!["something-new".to_owned()];
    end(&client(stack)?, &unasked, "SUCCEEDED").await
}

/// Waits until all of a table is there, and finds nothing beside it.
async fn compare(heading: &str, node: &Node) -> Result<()> {
    let mut tables = documented()?;
    let mut table = tables.remove(heading).context("no such table")?;
    table.extend(tables.remove("Every service").context("no such table")?);
    if heading != "Gateway" {
        table.extend(tables.remove(REDIS).context("no such table")?);
    }
    let addr = node.http_addr().context("it serves its metrics")?;
    let scrape = eventually(WAIT, &format!("the metrics of {heading}"), || async {
        let scrape = http_get(addr, "/metrics").await?.body;
        let wrong = missing(&table, &scrape);
        Ok(match wrong.is_empty() {
            true => Seen::Done(scrape),
            false => Seen::NotYet(wrong.join("; ")),
        })
    })
    .await?;
    if heading == "Scheduler" {
        // Nothing is judged here: their families are there, and empty.
        let judged = tables.remove("Scheduler with the output policy");
        table.extend(judged.context("no such table")?);
    }
    let unknown = undocumented(&table, &scrape);
    ensure!(unknown.is_empty(), "not documented: {}", unknown.join(", "));
    Ok(())
}

#[tokio::test]
async fn what_is_documented_is_counted_and_the_other_way_round() -> Result<()> {
    let stack = Stack::builder()
        .env_for(Service::Scheduler, "POLICY_CHECK_FAIL_MODE", "open")
        // Something is forgotten and something removed while the test lasts.
        .env_for(
            Service::Scheduler,
            "AIRLOCK_SCHEDULER__REPLAY_INTERVAL",
            "500ms",
        )
        .env_for(Service::Scheduler, "AIRLOCK_RETENTION__INTERVAL", "200ms")
        .env_for(Service::Scheduler, "AIRLOCK_RETENTION__CHANGES", "1s")
        .start()
        .await?;
    work(&stack).await?;
    compare("Gateway", stack.gateway()).await?;
    compare("Safety kernel", stack.kernel()).await?;
    work_unasked(&stack).await?;
    compare("Scheduler", stack.scheduler(0)).await?;
    let scrape = ask_scheduler(&stack, 0, "/metrics").await?;
    counted(&scrape)?;
    links_are_counted(&stack).await
}

/// Every service tells of its links, and of a Redis that went away.
async fn links_are_counted(stack: &Stack) -> Result<()> {
    let ask = async |node: &Node, wanted: &[&str]| {
        let addr = node.http_addr().context("it serves its metrics")?;
        let what = format!("{wanted:?} of {}", node.name());
        eventually(WAIT, &what, || async {
            let scrape = http_get(addr, "/metrics").await?.body;
            let off = wanted.iter().find(|line| !scrape.contains(**line));
            Ok(Seen::when(off.is_none(), format!("{off:?}")))
        })
        .await
    };
    ask(stack.gateway(), &["cordum_bus_connected 1\n"]).await?;
    let scrape = ask_scheduler(stack, 0, "/metrics").await?;
    ensure!(total(&scrape, "cordum_bus_published_total") > 0.0);
    let shared = ["cordum_bus_connected 1\n", "cordum_guard_shared 1\n"];
    ask(stack.scheduler(0), &shared).await?;
    stack.redis().kill()?;
    end(
        &client(stack)?,
        &SubmitRequest::new("job.echo"),
        "SUCCEEDED",
    )
    .await?;
    ask(stack.scheduler(0), &["cordum_guard_shared 0\n"]).await?;
    let scrape = ask_scheduler(stack, 0, "/metrics").await?;
    ensure!(total(&scrape, "cordum_guard_went_local_total") > 0.0);
    Ok(())
}

/// Each thing that happened was counted.
fn counted(scrape: &str) -> Result<()> {
    let s = "cordum_scheduler_";
    for (topic, status, jobs) in [
        ("job.echo", "SUCCEEDED", 3.0),
        ("job.fail", "FAILED", 1.0),
        ("job.echo", "DENIED", 1.0),
        ("job.sleep", "TIMEOUT", 1.0),
    ] {
        let line = format!("{s}jobs_completed_total{{topic=\"{topic}\",status=\"{status}\"}}");
        let n = total(scrape, &line);
        ensure!(
            (n - jobs).abs() < 0.5,
            "{n} jobs of {topic} ended as {status}"
        );
    }
    for name in [
        "jobs_received_total",
        "jobs_dispatched_total",
        "safety_denied_total",
        "safety_unavailable_total",
        "input_fail_open_total",
        "orphan_replayed_total",
        "dispatch_latency_seconds_count",
        "job_lock_wait_seconds_count",
        "schedule_to_start_seconds_count",
        "active_goroutines",
        "workers",
        "leader",
    ] {
        let n = total(scrape, &format!("{s}{name}"));
        ensure!(n > 0.0, "{name} is {n}");
    }
    // Three succeeded and one failed; the one that was given up had begun, unless the
    // machine is very busy. Each is counted once.
    let begun = total(scrape, &format!("{s}schedule_to_start_seconds_count"));
    ensure!((4.0..=5.0).contains(&begun), "{begun} runs began");
    Ok(())
}

#[test]
fn the_dashboard_shows_only_what_is_documented() -> Result<()> {
    let tables = documented()?;
    let all: Vec<&Documented> = tables.values().flatten().collect();
    ensure!(all.len() > 30, "only {} metrics are documented", all.len());
    let path = repository_root().join("deploy/grafana/airlock.json");
    let text = std::fs::read_to_string(path)?;
    let board: serde_json::Value = serde_json::from_str(&text)?;
    let panels = board["panels"].as_array().context("no panels")?;
    let mut used = BTreeSet::new();
    for panel in panels.iter().filter(|p| p["type"] != "row") {
        let targets = panel["targets"]
            .as_array()
            .context("a panel without targets")?;
        ensure!(!targets.is_empty(), "{} shows nothing", panel["title"]);
        for target in targets {
            let expr = target["expr"]
                .as_str()
                .context("a target without expression")?;
            let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for word in words.filter(|w| w.starts_with("cordum_") || w.starts_with("airlock_")) {
                let name = all.iter().find(|d| {
                    d.name == word
                        || (d.kind == "histogram" && word == format!("{}_bucket", d.name))
                });
                let d = name.with_context(|| format!("{word} is not documented"))?;
                used.insert(d.name.clone());
            }
        }
    }
    let unseen: Vec<_> = all
        .iter()
        .filter(|d| !used.contains(&d.name))
        .map(|d| &d.name)
        .collect();
    ensure!(unseen.is_empty(), "the dashboard does not show {unseen:?}");
    Ok(())
}
