//! The API keys follow the configuration file while the gateway runs.
//!
//! What must stay true: a key that is no longer in the file is refused from the next request
//! on, and a file with a mistake changes nothing. Requests that are under way keep their
//! caller, so that a client that waits for a job's end still gets its answer.
//!
//! Only `auth.keys` is taken from a changed file. It is checked against the settings that
//! the gateway runs with: a short key is not accepted because the file has another
//! `http.listen` by now. Rejected: reloading everything, because most settings have become
//! connections, pools and listeners by then.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use airlock_service::config::{Sources, load};
use airlock_service::{Context, Reloaded, Service};
use airlock_settings::{lock, with_secrets_revealed};
use serde_json::Value;

use super::keys::{Keys, validate_keys};
use crate::Gateway;
use crate::config::{AuthConfig, GatewayConfig};

/// The name in health.
const COMPONENT: &str = "keys";

/// The keys of `config`, replaced whenever the file that it was loaded from changes.
pub(crate) async fn open(
    config: &GatewayConfig,
    ctx: &Context,
) -> anyhow::Result<Arc<Reloaded<Keys>>> {
    let file = ctx
        .sources()
        .map(|sources| (sources, sources.path(Gateway::NAME)))
        // Without the file's folder everything comes from the environment.
        .filter(|(_, path)| path.exists() || path.parent().is_some_and(Path::is_dir));
    let Some((sources, path)) = file else {
        return Ok(Reloaded::fixed(Keys::new(&config.auth)?));
    };
    let reader = KeyReader::new(config, Arc::clone(sources));
    let load = move |_: &Path| reader.read();
    Ok(Reloaded::load_and_watch(COMPONENT, path, load, ctx).await?)
}

struct KeyReader {
    sources: Arc<Sources>,
    path: PathBuf,
    /// What the gateway runs with.
    auth: AuthConfig,
    listen: String,
    last: Mutex<LastRead>,
}

#[derive(Default)]
struct LastRead {
    /// The file was there once. From then on its absence is a mistake.
    had_file: bool,
    keys: Option<Keys>,
    /// What the file had at the start.
    first: Option<GatewayConfig>,
    /// The settings that were logged as changed.
    need_restart: Vec<String>,
}

impl KeyReader {
    fn new(config: &GatewayConfig, sources: Arc<Sources>) -> Self {
        Self {
            path: sources.path(Gateway::NAME),
            sources,
            auth: config.auth.clone(),
            listen: config.http.listen.clone(),
            last: Mutex::default(),
        }
    }

    /// The keys as the file has them now, or what is wrong with it. Blocks on the disk.
    fn read(&self) -> Result<Keys, String> {
        let mut last = lock(&self.last);
        if last.had_file && !self.path.exists() {
            return Err("the file is gone".to_owned());
        }
        let loaded = load::<Gateway>(&self.sources).map_err(|error| error.without_values())?;
        let mut auth = self.auth.clone();
        auth.keys.clone_from(&loaded.config.auth.keys);
        let problems = validate_keys(&auth, &self.listen);
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let keys = Keys::new(&auth).map_err(|error| error.to_string())?;
        last.had_file |= loaded.file.is_some();
        last.log_changes(&keys, loaded.config);
        Ok(keys)
    }
}

impl LastRead {
    fn log_changes(&mut self, keys: &Keys, config: GatewayConfig) {
        if let Some(old) = self.keys.replace(keys.clone()) {
            let changes = old.changes(keys);
            if !changes.is_empty() {
                tracing::info!(
                    added = ?changes.added,
                    removed = ?changes.removed,
                    changed = ?changes.changed,
                    "API keys replaced"
                );
            }
        }
        if let Some(settings) = self.newly_changed(config) {
            tracing::warn!(?settings, "changed settings need a restart");
        }
    }

    /// The other settings that differ from those at the start, unless the last read found
    /// the same: however often the file is written after a change, it is logged once.
    fn newly_changed(&mut self, config: GatewayConfig) -> Option<Vec<String>> {
        let first = self.first.get_or_insert_with(|| config.clone());
        let settings = settings_that_differ(first, &config);
        if settings == self.need_restart {
            return None;
        }
        self.need_restart.clone_from(&settings);
        (!settings.is_empty()).then_some(settings)
    }
}

/// The names of the settings, besides `auth.keys`, that have other values.
fn settings_that_differ(old: &GatewayConfig, new: &GatewayConfig) -> Vec<String> {
    // Revealed, because two passwords look the same behind their masks.
    let values = |config: &GatewayConfig| {
        let mut values = with_secrets_revealed(|| serde_json::to_value(config)).unwrap_or_default();
        if let Some(Value::Object(auth)) = values.get_mut("auth") {
            auth.remove("keys");
        }
        values
    };
    let mut names = Vec::new();
    compare("", &values(old), &values(new), &mut names);
    names
}

fn compare(path: &str, old: &Value, new: &Value, names: &mut Vec<String>) {
    match (old, new) {
        // Both have the same fields, being of one type.
        (Value::Object(old), Value::Object(new)) => {
            for (name, value) in new {
                let path = match path {
                    "" => name.clone(),
                    section => format!("{section}.{name}"),
                };
                compare(&path, old.get(name).unwrap_or(&Value::Null), value, names);
            }
        }
        _ if old == new => {}
        _ => names.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use airlock_model::Timestamp;
    use airlock_service::Secret;
    use axum::http::HeaderMap;
    use tempfile::TempDir;

    use super::*;

    const SECRET: &str = "topsecret123";

    /// A folder with `gateway.yaml`, and a development key in the environment.
    struct Fixture {
        folder: TempDir,
        sources: Arc<Sources>,
    }

    impl Fixture {
        fn new(text: &str) -> Self {
            let folder = TempDir::new().unwrap();
            let sources = Arc::new(Sources {
                directory: folder.path().to_owned(),
                env: [(
                    "AIRLOCK_API_KEY".to_owned(),
                    "d-0123456789abcdef".to_owned(),
                )]
                .into(),
                ..Sources::default()
            });
            let fixture = Self { folder, sources };
            fixture.write(text);
            fixture
        }

        fn write(&self, text: &str) {
            std::fs::write(self.folder.path().join("gateway.yaml"), text).unwrap();
        }

        fn remove(&self) {
            std::fs::remove_file(self.folder.path().join("gateway.yaml")).unwrap();
        }

        fn reader(&self) -> KeyReader {
            let loaded = load::<Gateway>(&self.sources).unwrap();
            KeyReader::new(&loaded.config, Arc::clone(&self.sources))
        }
    }

    /// A file with these keys, `<name>-0123456789abcdef` each.
    fn file(names: &[&str]) -> String {
        let keys: String = names
            .iter()
            .map(|name| {
                format!("    - {{name: {name}, tenant: t, key: {name}-0123456789abcdef}}\n")
            })
            .collect();
        format!("auth:\n  keys:\n{keys}")
    }

    fn knows(keys: &Keys, name: &str) -> bool {
        let mut headers = HeaderMap::new();
        let key = format!("{name}-0123456789abcdef");
        headers.insert("x-api-key", key.parse().unwrap());
        keys.authenticate(&headers, Timestamp(0)).is_ok()
    }

    fn known<'a>(keys: &Keys, names: &[&'a str]) -> Vec<&'a str> {
        let mut names = names.to_vec();
        names.retain(|name| knows(keys, name));
        names
    }

    #[test]
    fn the_keys_are_those_of_the_file_and_of_the_environment() {
        let fixture = Fixture::new(&file(&["a", "b"]));
        let reader = fixture.reader();
        let all = ["a", "b", "c", "d"];
        assert_eq!(known(&reader.read().unwrap(), &all), ["a", "b", "d"]);
        fixture.write(&file(&["b", "c"]));
        assert_eq!(known(&reader.read().unwrap(), &all), ["b", "c", "d"]);
        fixture.write("");
        assert_eq!(known(&reader.read().unwrap(), &all), ["d"]);
    }

    #[test]
    fn a_file_that_comes_later_counts_and_one_that_goes_is_a_mistake() {
        let fixture = Fixture::new("");
        fixture.remove();
        let reader = fixture.reader();
        assert_eq!(known(&reader.read().unwrap(), &["a", "d"]), ["d"]);
        fixture.write(&file(&["a"]));
        assert_eq!(known(&reader.read().unwrap(), &["a", "d"]), ["a", "d"]);
        fixture.remove();
        let error = reader.read().err().unwrap();
        assert!(error.contains("gone"), "{error}");
    }

    #[test]
    fn keys_are_checked_against_what_the_gateway_runs_with() {
        let fixture = Fixture::new(&format!("http: {{listen: '0.0.0.0:80'}}\n{}", file(&["a"])));
        let reader = fixture.reader();
        reader.read().unwrap();
        // In a gateway that started with this file, so short a key would be accepted.
        fixture.write("auth: {keys: [{name: b, tenant: t, key: short}]}\n");
        assert!(load::<Gateway>(&fixture.sources).is_ok());
        let error = reader.read().err().unwrap();
        assert!(error.contains("\"b\" is shorter than 16"), "{error}");
        // Likewise a key that is also the running gateway's development key.
        fixture.write(&file(&["d"]));
        let error = reader.read().err().unwrap();
        assert!(error.contains("also another's"), "{error}");
    }

    #[test]
    fn what_is_wrong_has_its_place_and_nothing_of_the_file() {
        let fixture = Fixture::new(&file(&["a"]));
        let reader = fixture.reader();
        for (fields, place) in [
            (format!("key: k, role: {SECRET}"), "line 3"),
            (format!("key: k, tenant: \"{SECRET} x\""), "line 3"),
            (format!("key: k, expires_at: {SECRET}"), "line 3"),
            (format!("key: k, {SECRET}: 1"), "line 3"),
            (format!("key: k, {SECRET}: 1, {SECRET}: 2"), "line 3"),
            (format!("key: [{SECRET}]"), "line 3"),
            (format!("key: {{{SECRET}: 1}}"), "line 3"),
            (format!("key: *{SECRET}"), "line 3"),
            (format!("key: '{SECRET}"), "line"),
            (format!("key: k, roles: {SECRET}"), "line 3"),
        ] {
            let tenant = if fields.contains("tenant") {
                ""
            } else {
                "tenant: t, "
            };
            fixture.write(&format!(
                "auth:\n  keys:\n    - {{name: x, {tenant}{fields}}}\n"
            ));
            let error = reader.read().err().unwrap_or_else(|| panic!("{fields}"));
            assert!(error.contains(place), "{fields}: {error}");
            assert!(!error.contains(SECRET), "{fields}: {error}");
        }
        fixture.write("auth: {keys: [{name: x, tenant: t}]}\n");
        let error = reader.read().err().unwrap();
        assert!(error.contains("either key or key_sha256"), "{error}");
    }

    #[test]
    fn other_settings_that_changed_are_named_without_their_values() {
        let old = GatewayConfig::default();
        let mut new = old.clone();
        new.auth.keys = load::<Gateway>(&Fixture::new(&file(&["a"])).sources)
            .unwrap()
            .config
            .auth
            .keys;
        assert_eq!(settings_that_differ(&old, &new), Vec::<String>::new());
        new.auth.development_key = Secret::from("another");
        new.limits.batch_items += 1;
        new.tasks.retry_after.pop();
        new.nats.url = "nats://elsewhere".into();
        let names = settings_that_differ(&old, &new);
        let expected = [
            "auth.development_key",
            "limits.batch_items",
            "nats.url",
            "tasks.retry_after",
        ];
        assert_eq!(names, expected);
        // One secret for another: their masks are the same.
        let mut newer = new.clone();
        newer.auth.development_key = Secret::from("a third");
        assert_eq!(settings_that_differ(&new, &newer), ["auth.development_key"]);
    }

    #[test]
    fn each_change_of_other_settings_is_logged_once() {
        let mut last = LastRead::default();
        let mut config = GatewayConfig::default();
        assert_eq!(last.newly_changed(config.clone()), None);
        config.limits.batch_items += 1;
        let items = || Some(vec!["limits.batch_items".to_owned()]);
        assert_eq!(last.newly_changed(config.clone()), items());
        assert_eq!(last.newly_changed(config.clone()), None);
        // Changed back, there is nothing to restart for.
        config.limits.batch_items -= 1;
        assert_eq!(last.newly_changed(config.clone()), None);
        config.limits.batch_items += 1;
        assert_eq!(last.newly_changed(config), items());
    }
}
