//! `pools.yaml`: which topics go to which pools, what the pools can do, and what share
//! each tenant has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use airlock_model::routing::{Pool, PoolRouting, PoolStatus};
use airlock_model::rules::{ByTopic, TenantRule, TenantRules};
use airlock_model::{PoolName, TenantId};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{Location, Spanned};

use crate::rules::pools_file::{FileError, Ordered, Problems, read_yaml_file};

/// The share a tenant may have at most.
const MAX_WEIGHT: u32 = 1000;

/// What the file says, compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pools {
    pub routing: PoolRouting,
    pub tenants: TenantRules,
}

impl Pools {
    /// Without a file: every topic goes to one pool.
    pub fn with_single_pool(pool: PoolName) -> Self {
        Self {
            routing: PoolRouting::single_pool(pool),
            tenants: TenantRules::default(),
        }
    }

    pub fn load(path: &Path) -> Result<Self, FileError> {
        compile_pools(path, read_yaml_file(path)?)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    topics: Ordered<Spanned<Names>>,
    pools: Ordered<PoolEntry>,
    tenants: Ordered<TenantEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PoolEntry {
    /// Documents of other schedulers call it `requires`.
    #[serde(alias = "requires")]
    capabilities: Vec<Spanned<String>>,
    status: Status,
    /// For people.
    #[serde(rename = "description")]
    _description: String,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    #[default]
    Active,
    Draining,
    Inactive,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TenantEntry {
    weight: Option<Spanned<i64>>,
    max_concurrent_jobs: Option<Spanned<i64>>,
}

/// One pool or several.
#[derive(Debug)]
struct Names(Vec<(Option<Location>, String)>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pool or a list of pools")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Names, E> {
                Ok(Names(vec![(None, name.to_owned())]))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Names, S::Error> {
                let mut names = Vec::new();
                while let Some(name) = seq.next_element::<Spanned<String>>()? {
                    names.push((Some(name.referenced), name.value));
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}

fn compile_pools(path: &Path, document: Document) -> Result<Pools, FileError> {
    let mut problems = Problems::new(path);
    let mut pools: BTreeMap<PoolName, Pool> = BTreeMap::new();
    for (key, entry) in document.pools.0 {
        let field = format!("pools.{}", key.value);
        match PoolName::new(&key.value) {
            Ok(name) => {
                let pool = Pool {
                    capabilities: parse_capabilities(&entry, &field, &mut problems),
                    status: match entry.status {
                        Status::Active => PoolStatus::Active,
                        Status::Draining => PoolStatus::Draining,
                        Status::Inactive => PoolStatus::Inactive,
                    },
                };
                pools.insert(name, pool);
            }
            Err(error) => problems.add(key.referenced, &field, error),
        }
    }
    let mut topics = ByTopic::default();
    if document.topics.0.is_empty() {
        let message = "no topic is mapped, so no job could ever run";
        problems.add(Location::UNKNOWN, "topics", message);
    }
    for (key, names) in document.topics.0 {
        let glob = problems.parse_glob(&key, "topics");
        let field = format!("topics.{:?}", key.value);
        if names.value.0.is_empty() {
            problems.add(names.referenced, &field, "the list of pools is empty");
        }
        let mut to: Vec<PoolName> = Vec::new();
        for (at, name) in names.value.0 {
            let at = at.unwrap_or(names.referenced);
            match pools.keys().find(|p| p.as_str() == name) {
                Some(pool) if to.contains(pool) => {
                    problems.add(at, &field, format!("pool {name:?} is given twice"));
                }
                Some(pool) => to.push(pool.clone()),
                None => problems.add(at, &field, unknown_pool_message(&name, &pools)),
            }
        }
        if let Some(glob) = glob {
            topics.insert(glob, to);
        }
    }
    let tenants = compile_tenant_rules(document.tenants, &mut problems);
    problems.into_result(Pools {
        routing: PoolRouting { topics, pools },
        tenants,
    })
}

fn parse_capabilities(entry: &PoolEntry, field: &str, problems: &mut Problems) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for capability in &entry.capabilities {
        let name = &capability.value;
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            let field = format!("{field}.capabilities");
            problems.add(capability.referenced, &field, "not a capability's name");
        }
        all.insert(name.clone());
    }
    all
}

fn unknown_pool_message(name: &str, pools: &BTreeMap<PoolName, Pool>) -> String {
    let known: Vec<&str> = pools.keys().map(PoolName::as_str).take(20).collect();
    if known.is_empty() {
        format!("unknown pool {name:?}; declare it under pools")
    } else {
        format!(
            "unknown pool {name:?}; declared under pools: {}",
            known.join(", ")
        )
    }
}

fn compile_tenant_rules(entries: Ordered<TenantEntry>, problems: &mut Problems) -> TenantRules {
    let mut rules = TenantRules::default();
    for (key, entry) in entries.0 {
        let field = format!("tenants.{:?}", key.value);
        let mut rule = TenantRule::default();
        if let Some(weight) = entry.weight {
            match u32::try_from(weight.value) {
                Ok(n @ 1..=MAX_WEIGHT) => rule.weight = n,
                Ok(_) | Err(_) => problems.add(
                    weight.referenced,
                    &format!("{field}.weight"),
                    format!("{} is not between 1 and {MAX_WEIGHT}", weight.value),
                ),
            }
        }
        if let Some(limit) = entry.max_concurrent_jobs {
            match u32::try_from(limit.value) {
                Ok(n) => rule.max_concurrent = (n > 0).then_some(n),
                Err(_) => problems.add(
                    limit.referenced,
                    &format!("{field}.max_concurrent_jobs"),
                    format!("{} is not a number of jobs (0: no limit)", limit.value),
                ),
            }
        }
        if key.value == "*" {
            rules.others = rule;
        } else {
            match TenantId::new(&key.value) {
                Ok(tenant) => {
                    rules.named.insert(tenant, rule);
                }
                Err(error) => problems.add(key.referenced, &field, error),
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use airlock_model::Topic;

    use super::*;
    use crate::rules::pools_file::parse_yaml;

    fn load(text: &str) -> Result<Pools, String> {
        let path = Path::new("pools.yaml");
        parse_yaml(path, text)
            .and_then(|document| compile_pools(path, document))
            .map_err(|e| e.to_string())
    }

    fn refused(text: &str) -> String {
        load(text).expect_err("it was taken")
    }

    #[test]
    fn the_shipped_file_maps_every_job_to_default() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/pools.yaml");
        let shipped = Pools::load(&path).unwrap();
        let without = Pools::with_single_pool(PoolName::new("default").unwrap());
        assert_eq!(shipped, without, "the file says what holds without it");
    }

    #[test]
    fn topics_pools_and_tenants_are_read() {
        let pools = load(
            "topics:\n  job.*: default\n  job.train: [gpu, default]\npools:\n  default: {}\n  \
             gpu:\n    capabilities: [cuda]\n    status: draining\ntenants:\n  '*':\n    \
             weight: 2\n  acme:\n    weight: 5\n    max_concurrent_jobs: 7\n",
        )
        .unwrap();
        let names = |t: &str| {
            let topic = Topic::new(t).unwrap();
            let pools = pools.routing.pools_for(&topic);
            pools.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names("job.train"), ["gpu", "default"]);
        assert_eq!(names("job.other"), ["default"]);
        let gpu = &pools.routing.pools[&PoolName::new("gpu").unwrap()];
        assert_eq!(gpu.status, PoolStatus::Draining);
        assert!(gpu.capabilities.contains("cuda"));
        let tenant = |t: &str| pools.tenants.get(&TenantId::new(t).unwrap());
        assert_eq!(tenant("acme").weight, 5);
        assert_eq!(tenant("acme").max_concurrent, Some(7));
        assert_eq!(tenant("anyone").weight, 2);
    }

    #[test]
    fn mistakes_are_named_with_file_line_and_reason() {
        let text =
            refused("topics:\n  job.*: default\n  job.x: [default, gpu]\npools:\n  default: {}\n");
        assert!(
            text.starts_with("pools.yaml:3:") && text.contains("unknown pool \"gpu\""),
            "{text}"
        );
        let text = refused("topics:\n  job.[ab]: default\npools:\n  default: {}\n");
        assert!(
            text.starts_with("pools.yaml:2:") && text.contains("bad pattern"),
            "{text}"
        );
        let text = refused("topics:\n  job.*: default\npools:\n  default:\n    colour: red\n");
        assert!(
            text.starts_with("pools.yaml:5:") && text.contains("colour"),
            "{text}"
        );
        let text = refused("topics:\n  job.*: default\npools:\n  default:\n    status: asleep\n");
        assert!(
            text.starts_with("pools.yaml:5:") && text.contains("asleep"),
            "{text}"
        );
        let text = refused(
            "topics:\n  job.*: default\npools:\n  default: {}\ntenants:\n  acme:\n    weight: -1\n",
        );
        assert!(
            text.starts_with("pools.yaml:7:") && text.contains("-1"),
            "{text}"
        );
        assert!(refused("").contains("no topic is mapped"));
        assert!(refused("topics: [").contains("pools.yaml:"));
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let text = refused("topics:\n  job.**: a\n  job.b: b\npools: {}\n");
        assert_eq!(text.matches("pools.yaml:").count(), 3, "{text}");
    }
}
