//! What the numbers were measured on.

use airlock_testkit::Postgres;
use anyhow::Context;

/// The machine.
#[derive(Debug, Clone)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
}

impl Machine {
    pub fn detect() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            cpu: std::fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| parse_model_name(&text))
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        }
    }
}

fn parse_model_name(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.trim().to_owned())
}

/// How much Postgres promises, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durability {
    pub fsync: String,
    pub synchronous_commit: String,
    pub version: String,
}

impl Durability {
    pub async fn read(postgres: &Postgres) -> anyhow::Result<Self> {
        Ok(Self {
            fsync: show_postgres_setting(postgres, "fsync").await?,
            synchronous_commit: show_postgres_setting(postgres, "synchronous_commit").await?,
            version: show_postgres_setting(postgres, "server_version").await?,
        })
    }
}

async fn show_postgres_setting(postgres: &Postgres, setting: &str) -> anyhow::Result<String> {
    let rows = postgres.query(&format!("SHOW {setting}")).await?;
    let cell = rows
        .into_iter()
        .next()
        .and_then(|row| row.into_iter().next());
    cell.flatten()
        .with_context(|| format!("Postgres has no setting {setting}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_has_a_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags : x\n";
        assert_eq!(
            parse_model_name(text).as_deref(),
            Some("Some CPU @ 2.00GHz")
        );
        assert!(Machine::detect().cores >= 1);
    }
}
