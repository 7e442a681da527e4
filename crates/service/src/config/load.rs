//! Finding the layers and merging them.
//!
//! Each file is read twice: strictly into the configuration's own type, for
//! errors with line and column, and then as plain values for figment to merge.
//! Figment alone would report an unknown field without its place; the strict
//! reader alone cannot tell a field that was given from one that was defaulted.

use std::collections::BTreeMap;
use std::path::PathBuf;

use airlock_settings::with_secrets_revealed;
use figment::Figment;
use figment::value::{Dict, Value};

use super::error::{ConfigError, Problem};
use super::overrides::{self, Layer, Override, describe_error};
use super::{COMMON_ENV, ServiceConfig, yaml};
use crate::Service;

/// Where configuration may come from. Made by hand in tests, so that they need
/// not touch the process's environment.
#[derive(Clone, Default)]
pub struct Sources {
    /// `--config`: must exist when given.
    pub file: Option<PathBuf>,
    /// `--set section.field=value`, in order.
    pub set: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Where `<name>.yaml` is looked for without `--config`; need not exist.
    pub directory: PathBuf,
}

impl Sources {
    /// The process's environment, and the configuration folder it names
    /// (`AIRLOCK_CONFIG_DIR`, or else `config`). Variables that are not UTF-8
    /// cannot be ours and are left out.
    pub fn from_process() -> Self {
        let env: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
            .collect();
        let directory = env
            .get("AIRLOCK_CONFIG_DIR")
            .filter(|directory| !directory.is_empty())
            .map_or_else(|| PathBuf::from("config"), PathBuf::from);
        Self {
            file: None,
            set: Vec::new(),
            env,
            directory,
        }
    }

    /// The file of the service `name`, whether or not it is there.
    pub fn path(&self, name: &str) -> PathBuf {
        self.file
            .clone()
            .unwrap_or_else(|| self.directory.join(format!("{name}.yaml")))
    }

    fn find_file(&self, name: &str) -> Option<PathBuf> {
        let path = self.path(name);
        (self.file.is_some() || path.exists()).then_some(path)
    }
}

/// A configuration, and what is worth a word in the log about it.
#[derive(Debug)]
pub struct Loaded<C> {
    pub config: C,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// `AIRLOCK_` variables for sections this service does not have.
    pub ignored: Vec<String>,
}

/// The configuration of `S` from all layers, checked as a whole.
pub fn load<S: Service>(sources: &Sources) -> Result<Loaded<S::Config>, ConfigError> {
    let mut problems = Vec::new();
    let file = sources.find_file(S::NAME);
    let merged = merge_layers::<S>(sources, file.as_ref(), &mut problems);
    match merged {
        Some((config, ignored)) if problems.is_empty() => Ok(Loaded {
            config,
            file,
            ignored,
        }),
        Some(_) | None => Err(ConfigError {
            service: S::NAME,
            problems,
        }),
    }
}

fn merge_layers<S: Service>(
    sources: &Sources,
    file: Option<&PathBuf>,
    problems: &mut Vec<Problem>,
) -> Option<(S::Config, Vec<String>)> {
    let defaults =
        match with_secrets_revealed(|| Value::serialize(S::Config::default()).map_err(Box::new)) {
            Ok(Value::Dict(_, dict)) => dict,
            Ok(_) => {
                problems.push(Problem::Merge("the defaults are not a mapping".to_owned()));
                return None;
            }
            Err(error) => {
                problems.push(Problem::Merge(describe_error(*error)));
                return None;
            }
        };
    let base = Figment::new().merge(Layer {
        name: "defaults".to_owned(),
        dict: defaults.clone(),
    });
    let mut figment = base.clone();

    if let Some(path) = file {
        match read_file_layer::<S::Config>(path) {
            Ok(layer) => figment = figment.merge(layer),
            Err(problem) => problems.push(problem),
        }
    }
    let (prefixed, ignored) = overrides::prefixed_overrides(&sources.env, &defaults);
    let all: Vec<Override> =
        overrides::documented_overrides(&sources.env, COMMON_ENV.iter().chain(S::ENV))
            .into_iter()
            .chain(prefixed)
            .chain(overrides::flag_overrides(sources, problems))
            .collect();
    for single in all {
        match single.to_checked_layer::<S::Config>(&base) {
            Ok(layer) => figment = figment.merge(layer),
            Err(problem) => problems.push(problem),
        }
    }

    match figment.extract_lossy::<S::Config>() {
        Ok(config) => {
            let mut invalid = Vec::new();
            config.telemetry().validate(&mut invalid);
            config.http().validate(&mut invalid);
            config.shutdown().validate(&mut invalid);
            invalid.extend(config.validate());
            problems.extend(invalid.into_iter().map(Problem::Invalid));
            Some((config, ignored))
        }
        Err(error) => {
            problems.push(Problem::Merge(describe_error(error)));
            None
        }
    }
}

fn read_file_layer<C: ServiceConfig>(path: &std::path::Path) -> Result<Layer, Problem> {
    let text = yaml::read_text(path)?;
    yaml::parse_strict::<C>(path, &text)?;
    let values: serde_json::Value = yaml::parse_strict(path, &text)?;
    let dict = match Value::serialize(values) {
        Ok(Value::Dict(_, dict)) => dict,
        // A blank file; the strict reader has refused anything else.
        Ok(_) => Dict::new(),
        Err(error) => return Err(Problem::Merge(describe_error(error))),
    };
    Ok(Layer {
        name: path.display().to_string(),
        dict,
    })
}
