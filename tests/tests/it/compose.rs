//! The Compose file and the Dockerfile, held against each other and against the binaries.
//!
//! There is not always a container engine where the tests run, so the files are read as
//! it would read them: every image that is built has its stage, every address leads to a
//! service and a port of the file, and every name in an environment is one that the
//! binary obeys, which is found out by running the binary.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use airlock_testkit::{Process, repository_root};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What the variables of the Compose file are set to here.
const SECRETS: &[(&str, &str)] = &[
    ("POSTGRES_PASSWORD", "pw1"),
    ("AIRLOCK_API_KEY", "key1-of-enough-characters"),
    ("AIRLOCK_APPROVER_KEY", "key2-of-enough-characters"),
    ("OUTPUT_POLICY_ENABLED", "true"),
];

/// The ports the servers' images listen on.
const SERVERS: &[(&str, u16)] = &[("postgres", 5432), ("redis", 6379), ("nats", 4222)];

struct Compose {
    all: Value,
}

impl Compose {
    fn read() -> Result<Self> {
        let mut text = std::fs::read_to_string(repository_root().join("deploy/compose.yaml"))?;
        let asked: BTreeSet<String> = variables(&text)?;
        let given: BTreeSet<String> = example_env()?;
        ensure!(
            asked == given,
            "compose.yaml asks for {asked:?}, example.env names {given:?}"
        );
        for (name, value) in SECRETS {
            let place = format!("${{{name}:?set it in deploy/.env}}");
            ensure!(text.contains(&place), "{name} is not asked for");
            text = text.replace(&place, value);
        }
        let all = serde_saphyr::from_str(&text).context("reading compose.yaml")?;
        Ok(Self { all })
    }

    fn services(&self) -> Result<impl Iterator<Item = (&String, &Value)>> {
        let services = self.all["services"].as_object().context("no services")?;
        Ok(services.iter())
    }

    fn service(&self, name: &str) -> Result<&Value> {
        self.all["services"]
            .get(name)
            .with_context(|| format!("no service {name}"))
    }

    fn environment(&self, name: &str) -> Result<BTreeMap<String, String>> {
        let env = self.service(name)?["environment"].as_object();
        let env = env.with_context(|| format!("{name} has no environment"))?;
        env.iter()
            .map(|(key, value)| {
                let value = value.as_str().with_context(|| format!("{name}: {key}"))?;
                Ok((key.clone(), value.to_owned()))
            })
            .collect()
    }
}

/// The names that stand as `${NAME:?…}`.
fn variables(text: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for piece in text.split("${").skip(1) {
        let (inside, _) = piece.split_once('}').context("an open variable")?;
        let (name, _) = inside
            .split_once(":?")
            .with_context(|| format!("{inside} may be empty without a word"))?;
        names.insert(name.to_owned());
    }
    Ok(names)
}

fn example_env() -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(repository_root().join("deploy/example.env"))?;
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    Ok(lines
        .filter_map(|l| l.split_once('='))
        .map(|(name, _)| name.to_owned())
        .collect())
}

/// One stage of the Dockerfile: what it is built on, and its own lines.
struct Stage {
    base: String,
    lines: Vec<String>,
}

struct Dockerfile(BTreeMap<String, Stage>);

impl Dockerfile {
    fn read() -> Result<Self> {
        let text = std::fs::read_to_string(repository_root().join("deploy/Dockerfile"))?;
        let mut stages: BTreeMap<String, Stage> = BTreeMap::new();
        let mut current = String::new();
        for line in text.replace("\\\n", " ").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["FROM", base, "AS", name] = words[..] {
                name.clone_into(&mut current);
                let stage = Stage {
                    base: base.to_owned(),
                    lines: Vec::new(),
                };
                stages.insert(current.clone(), stage);
            } else if let Some(stage) = stages.get_mut(&current) {
                stage.lines.push(words.join(" "));
            }
        }
        Ok(Self(stages))
    }

    /// The lines of a stage and of all it is built on.
    fn lines(&self, target: &str) -> Result<Vec<&str>> {
        let mut lines = Vec::new();
        let mut at = self.0.get(target);
        ensure!(at.is_some(), "the Dockerfile has no target {target}");
        while let Some(stage) = at {
            lines.extend(stage.lines.iter().map(String::as_str));
            at = self.0.get(&stage.base);
        }
        Ok(lines)
    }

    /// What runs in a container of this target.
    fn program(&self, target: &str) -> Result<String> {
        let lines = self.lines(target)?;
        let entry = lines.iter().find_map(|l| l.strip_prefix("ENTRYPOINT [\""));
        let entry = entry.and_then(|l| l.split('"').next());
        Ok(entry
            .with_context(|| format!("{target} starts nothing"))?
            .to_owned())
    }

    /// A value of its environment.
    fn env(&self, target: &str, name: &str) -> Result<String> {
        let lines = self.lines(target)?;
        let mut words = lines
            .iter()
            .filter_map(|l| l.strip_prefix("ENV "))
            .flat_map(|l| l.split(' '));
        words
            .find_map(|w| w.strip_prefix(name)?.strip_prefix('='))
            .map(str::to_owned)
            .with_context(|| format!("{target} has no {name}"))
    }
}

#[test]
fn every_service_of_the_compose_file_is_there_and_buildable() -> Result<()> {
    let (compose, dockerfile) = (Compose::read()?, Dockerfile::read()?);
    let names: BTreeSet<&str> = compose.services()?.map(|(n, _)| n.as_str()).collect();
    let wanted =
        "postgres redis nats safety-kernel output-policy scheduler saga-manager gateway worker cli";
    ensure!(names == wanted.split(' ').collect(), "{names:?}");
    let builder = dockerfile.lines("builder")?.join("\n");
    for (name, service) in compose.services()? {
        if let Some(image) = service["image"].as_str() {
            let tag = image.split_once(':').map(|(_, tag)| tag).unwrap_or("");
            ensure!(tag.starts_with(|c: char| c.is_ascii_digit()), "{image}");
            ensure!(
                !service["healthcheck"]["test"].is_null(),
                "{name} has no check"
            );
            continue;
        }
        let build = &service["build"];
        ensure!(
            build["context"] == ".." && build["dockerfile"] == "deploy/Dockerfile",
            "{name} is built from elsewhere: {build}"
        );
        let target = build["target"].as_str().context("no target")?;
        let program = dockerfile.program(target)?;
        let copied = format!("COPY --from=builder /out/{program} /usr/local/bin/");
        let lines = dockerfile.lines(target)?;
        ensure!(lines.contains(&copied.as_str()), "{target}: {lines:?}");
        ensure!(
            builder.contains(&format!("/{program} ")),
            "the builder does not hand out {program}"
        );
    }
    // One that loses the lead ends, and counts on being started again.
    for name in [
        "gateway",
        "scheduler",
        "safety-kernel",
        "output-policy",
        "saga-manager",
        "worker",
    ] {
        let service = compose.service(name)?;
        ensure!(service["restart"] == "always", "{name} is not restarted");
    }
    Ok(())
}

#[test]
fn what_the_images_copy_and_mount_is_there() -> Result<()> {
    let (compose, dockerfile) = (Compose::read()?, Dockerfile::read()?);
    for line in dockerfile.0.values().flat_map(|stage| &stage.lines) {
        let Some(copy) = line.strip_prefix("COPY ") else {
            continue;
        };
        let mut words = copy.split(' ').filter(|w| !w.starts_with("--chmod"));
        let from = words.next().context("nothing to copy")?;
        if !from.starts_with("--from=") {
            let path = repository_root().join(from);
            ensure!(path.exists(), "{from} is not in the tree");
        }
    }
    let named = compose.all["volumes"].as_object().context("no volumes")?;
    for (name, service) in compose.services()? {
        let volumes = service["volumes"].as_array().into_iter().flatten();
        for volume in volumes.filter_map(Value::as_str) {
            let (from, _) = volume.split_once(':').context("a volume without a place")?;
            let there = match from.starts_with('.') {
                true => repository_root().join("deploy").join(from).exists(),
                false => named.contains_key(from),
            };
            ensure!(there, "{name} mounts {from}");
        }
    }
    Ok(())
}

#[test]
fn every_address_leads_to_a_service_that_is_waited_for() -> Result<()> {
    let (compose, dockerfile) = (Compose::read()?, Dockerfile::read()?);
    let listens = |target: &str, name: &str| -> Result<u16> {
        let value = dockerfile.env(target, name)?;
        let port = value.strip_prefix("0.0.0.0:").context(value.clone())?;
        Ok(port.parse()?)
    };
    let mut ports: BTreeMap<&str, u16> = SERVERS.iter().copied().collect();
    let kernel = listens("safety-kernel", "AIRLOCK_GRPC__LISTEN")?;
    ports.insert("safety-kernel", kernel);
    let output = listens("output-policy", "AIRLOCK_GRPC__LISTEN")?;
    ports.insert("output-policy", output);
    ports.insert("gateway", listens("gateway", "AIRLOCK_HTTP__LISTEN")?);
    for (name, service) in compose.services()? {
        for value in service["environment"].as_object().into_iter().flatten() {
            let Some((_, rest)) = value.1.as_str().and_then(|v| v.split_once("://")) else {
                continue;
            };
            let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
            let host = host.split('/').next().unwrap_or(host);
            let (host, port) = host.split_once(':').context("an address without a port")?;
            let there = ports.get(host);
            ensure!(
                there.map(u16::to_string).as_deref() == Some(port),
                "{name}: {} leads nowhere",
                value.0
            );
        }
        for (other, how) in service["depends_on"].as_object().into_iter().flatten() {
            let target = &compose.service(other)?["build"]["target"];
            let checked = match target.as_str() {
                Some(target) => {
                    let lines = dockerfile.lines(target)?;
                    lines.iter().any(|l| l.starts_with("HEALTHCHECK "))
                }
                None => !compose.service(other)?["healthcheck"].is_null(),
            };
            ensure!(how["condition"] == "service_healthy", "{name}: {other}");
            ensure!(checked, "{name} waits for the health of {other}");
        }
    }
    let published = compose.service("gateway")?["ports"][0].as_str();
    ensure!(published == Some("127.0.0.1:8080:8080"), "{published:?}");
    ensure!(ports["gateway"] == 8080);
    let check = dockerfile.lines("gateway")?.join("\n");
    ensure!(check.contains("CMD [\"ready\", \"8080\"]"), "{check}");
    // Two schedulers, one of which leads, and one Postgres of 16 or newer.
    let replicas = &compose.service("scheduler")?["deploy"]["replicas"];
    ensure!(*replicas == 2, "{replicas} schedulers");
    let image = compose.service("postgres")?["image"].as_str();
    let version = image.and_then(|i| i.strip_prefix("postgres:"));
    let version: String = version
        .context("no Postgres image")?
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    ensure!(version.parse::<u32>()? >= 16, "Postgres {version}");
    Ok(())
}

/// Nobody approves their own job, so that approving needs a second key.
#[test]
fn whoever_submits_is_not_alone_in_having_a_key() -> Result<()> {
    let env = Compose::read()?.environment("gateway")?;
    let (key, approver) = (&env["AIRLOCK_API_KEY"], env.get("AIRLOCK_APPROVER_KEY"));
    let approver = approver.context("nobody can approve")?;
    ensure!(key != approver, "one key for both");
    Ok(())
}

/// What a service would do in this environment, as it prints it.
async fn printed(program: &str, env: &BTreeMap<String, String>) -> Result<(bool, String)> {
    let mut builder = Process::builder(program).args(["--print-config"]);
    for (name, value) in env {
        builder = builder.env(name, value);
    }
    let process = builder.spawn().await?;
    let status = process.wait(Duration::from_secs(60)).await?;
    Ok((status.success(), process.log()))
}

#[tokio::test]
async fn every_name_in_an_environment_is_one_the_binary_obeys() -> Result<()> {
    let (compose, dockerfile) = (Compose::read()?, Dockerfile::read()?);
    for name in [
        "gateway",
        "scheduler",
        "safety-kernel",
        "output-policy",
        "saga-manager",
    ] {
        let program = dockerfile.program(name)?;
        let mut env = compose.environment(name)?;
        env.insert("AIRLOCK_CONFIG_DIR".to_owned(), "/nonexistent".to_owned());
        for own in [
            "AIRLOCK_HTTP__LISTEN",
            "AIRLOCK_GRPC__LISTEN",
            "SAFETY_POLICY_PATH",
            "OUTPUT_SCANNERS_PATH",
        ] {
            if let Ok(value) = dockerfile.env(name, own) {
                env.insert(own.to_owned(), value);
            }
        }
        let (good, all) = printed(&program, &env).await?;
        ensure!(good, "{name} does not take its environment: {all}");
        for left_out in env.keys().filter(|n| *n != "AIRLOCK_CONFIG_DIR") {
            let mut fewer = env.clone();
            fewer.remove(left_out);
            let (_, without) = printed(&program, &fewer).await?;
            ensure!(without != all, "{left_out} means nothing to {name}");
        }
    }
    Ok(())
}

/// A worker's and the command's names are those of their pages and arguments.
#[test]
fn the_worker_and_the_command_are_given_names_they_read() -> Result<()> {
    let compose = Compose::read()?;
    for (service, source) in [
        ("worker", "crates/worker-sdk/src/worker/environment.rs"),
        ("cli", "crates/cli/src/args.rs"),
    ] {
        let code = std::fs::read_to_string(repository_root().join(source))?;
        for name in compose.environment(service)?.keys() {
            ensure!(
                code.contains(&format!("\"{name}\"")),
                "{service} is given {name}, which {source} does not read"
            );
        }
    }
    Ok(())
}
