use std::path::Path;
use std::time::Duration;

use airlock_service::config::{ConfigError, Loaded, Sources, load};
use tempfile::TempDir;

use crate::probe::{Mode, Probe, ProbeConfig};

fn sources(file: Option<&str>, env: &[(&str, &str)], set: &[&str]) -> (TempDir, Sources) {
    let folder = TempDir::new().expect("a folder");
    if let Some(text) = file {
        std::fs::write(folder.path().join("probe.yaml"), text).expect("writes");
    }
    let sources = Sources {
        file: None,
        set: set.iter().map(|flag| (*flag).to_owned()).collect(),
        env: env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        directory: folder.path().to_owned(),
    };
    (folder, sources)
}

fn try_load(
    file: Option<&str>,
    env: &[(&str, &str)],
    set: &[&str],
) -> Result<Loaded<ProbeConfig>, ConfigError> {
    let (_folder, sources) = sources(file, env, set);
    load::<Probe>(&sources)
}

fn loaded(file: Option<&str>, env: &[(&str, &str)], set: &[&str]) -> ProbeConfig {
    try_load(file, env, set)
        .unwrap_or_else(|error| panic!("{error}"))
        .config
}

fn refused(file: Option<&str>, env: &[(&str, &str)], set: &[&str]) -> String {
    try_load(file, env, set)
        .expect_err("a bad configuration")
        .to_string()
}

#[test]
fn each_layer_goes_over_the_one_before() {
    let file = "bus:\n  name: file\n  batch: 1\n";
    let env = [
        ("AIRLOCK_BUS__NAME", "variable"),
        ("AIRLOCK_BUS__BATCH", "2"),
    ];
    let flags = ["bus.name=flag"];
    assert_eq!(loaded(None, &[], &[]).bus.name, "probe");
    assert_eq!(loaded(Some(file), &[], &[]).bus.name, "file");
    assert_eq!(loaded(Some(file), &env, &[]).bus.name, "variable");
    let all = loaded(Some(file), &env, &flags);
    assert_eq!((all.bus.name.as_str(), all.bus.batch), ("flag", 2));
}

#[test]
fn a_general_name_goes_over_a_documented_one() {
    let documented = ("NATS_URL", "nats://documented");
    let general = ("AIRLOCK_BUS__URL", "nats://general");
    assert_eq!(
        loaded(None, &[documented], &[]).bus.url.expose(),
        "nats://documented"
    );
    assert_eq!(
        loaded(None, &[documented, general], &[]).bus.url.expose(),
        "nats://general"
    );
    assert_eq!(
        loaded(None, &[("NATS_URL", "")], &[]).bus.url.expose(),
        "nats://localhost:4222"
    );
    let grace = ("SCHED_SHUTDOWN_GRACE_SECONDS", "3");
    assert_eq!(loaded(None, &[grace], &[]).shutdown.grace_seconds, 3);
    let otlp = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
    assert_eq!(
        loaded(None, &[otlp], &[])
            .telemetry
            .otlp_endpoint
            .as_deref(),
        Some("http://collector:4317")
    );
}

#[test]
fn a_section_given_in_part_keeps_the_other_defaults() {
    let config = loaded(Some("bus:\n  batch: 7\nhttp: {}\n"), &[], &[]);
    // Both differ from their sections' own defaults, and one is a secret.
    assert_eq!(config.bus.password.expose(), "from-the-defaults");
    assert_eq!(config.http.listen, "127.0.0.1:0");
}

#[test]
fn text_that_looks_like_something_else_stays_text() {
    for text in [
        "0123",
        "1e5",
        "true",
        "null",
        "[brackets]",
        "{a: b}",
        "  padded ",
        "\"q\"",
    ] {
        let config = loaded(
            None,
            &[("NATS_PASSWORD", text), ("AIRLOCK_BUS__NAME", text)],
            &[],
        );
        assert_eq!(config.bus.password.expose(), text);
        assert_eq!(config.bus.name, text);
    }
}

#[test]
fn values_become_what_their_field_asks_for() {
    let env = [
        ("AIRLOCK_BUS__ENABLED", "false"),
        ("AIRLOCK_BUS__RETRY", "2m"),
        ("AIRLOCK_BUS__TAGS", "[a, \"7\"]"),
        ("AIRLOCK_TELEMETRY__SAMPLE_RATIO", "0.25"),
        ("AIRLOCK_MODE__X", "not ours to judge by section"),
    ];
    let (_folder, mut from) = sources(None, &env[..4], &["mode=stuck", "http.listen="]);
    let config = load::<Probe>(&from)
        .unwrap_or_else(|error| panic!("{error}"))
        .config;
    assert!(!config.bus.enabled);
    assert_eq!(config.bus.retry, Duration::from_secs(120));
    assert_eq!(config.bus.tags, ["a", "7"]);
    assert_eq!(config.telemetry.sample_ratio, 0.25);
    assert_eq!(config.mode, Mode::Stuck);
    assert_eq!(config.http.listen, "");
    // A path through a field that is no section is a mistake, by name.
    from.env.insert(env[4].0.to_owned(), env[4].1.to_owned());
    let error = load::<Probe>(&from)
        .expect_err("mode is no section")
        .to_string();
    assert!(error.contains("AIRLOCK_MODE__X"), "{error}");
}

#[test]
fn a_mistake_in_a_file_has_its_place() {
    for (file, line, says) in [
        (
            "bus:\n  name: x\n  bacth: 5\n",
            "probe.yaml:3:",
            "did you mean `batch`",
        ),
        ("bus:\n  batch: many\n", "probe.yaml:2:", ""),
        ("bus:\n  batch: -1\n", "probe.yaml:2:", ""),
        ("# a\n\nmode: odd\n", "probe.yaml:3:", "odd"),
        ("bus:\n  retry: 30\n", "probe.yaml:2:", "no unit"),
        ("bus:\n  name: 0123\n", "probe.yaml:2:", "quote"),
        ("bus:\n  enabled: yes\n", "probe.yaml:2:", ""),
        ("bus: [\n", "probe.yaml:", ""),
        ("bus:\n  batch: 1\n  batch: 2\n", "probe.yaml:3:", "batch"),
        ("just words\n", "probe.yaml:1:", ""),
    ] {
        let error = refused(Some(file), &[], &[]);
        assert!(error.contains(line), "no {line} in: {error}");
        assert!(error.contains(says), "no {says} in: {error}");
    }
}

#[test]
fn an_unquoted_number_is_no_secret_and_is_not_repeated() {
    let error = refused(
        Some("bus:\n  password: 31337\n  url: nats://u:hunter2@h\n"),
        &[],
        &[],
    );
    assert!(
        error.contains("probe.yaml:2:") && error.contains("quotes"),
        "{error}"
    );
    assert!(
        !error.contains("31337") && !error.contains("hunter2"),
        "{error}"
    );
}

#[test]
fn files_without_content_are_fine() {
    for file in ["", "# only a comment\n", "---\n"] {
        assert_eq!(loaded(Some(file), &[], &[]).bus.batch, 500, "for {file:?}");
    }
}

#[test]
fn a_file_that_was_asked_for_must_exist() {
    let (folder, mut from) = sources(None, &[], &[]);
    from.file = Some(folder.path().join("absent.yaml"));
    let error = load::<Probe>(&from).expect_err("no such file").to_string();
    assert!(error.contains("absent.yaml"), "{error}");
    from.file = None;
    from.directory = Path::new("/nonexistent").to_owned();
    assert!(load::<Probe>(&from).is_ok(), "the folder need not exist");
}

#[test]
fn all_problems_come_together_each_with_its_origin() {
    let error = refused(
        Some("bus:\n  bacth: 5\n"),
        &[
            ("AIRLOCK_BUS__BATCH", "lots"),
            ("AIRLOCK_BUS__NMAE", "x"),
            ("SCHED_SHUTDOWN_GRACE_SECONDS", "soon"),
        ],
        &[
            "bus.retry=30",
            "nonsense",
            "colour.red=1",
            "telemetry.sample_ratio=2",
        ],
    );
    for says in [
        "probe.yaml:2:",
        "environment variable AIRLOCK_BUS__BATCH",
        "environment variable AIRLOCK_BUS__NMAE",
        "did you mean `name`",
        "environment variable SCHED_SHUTDOWN_GRACE_SECONDS",
        "--set bus.retry",
        "expected section.field=value",
        "--set colour.red",
        "telemetry.sample_ratio is 2",
    ] {
        assert!(error.contains(says), "no `{says}` in:\n{error}");
    }
}

#[test]
fn values_are_checked_as_a_whole() {
    let error = refused(
        None,
        &[],
        &[
            "bus.batch=0",
            "http.listen=nowhere",
            "shutdown.grace_seconds=0",
        ],
    );
    for says in [
        "bus.batch must",
        "http.listen `nowhere`",
        "shutdown.grace_seconds is 0",
    ] {
        assert!(error.contains(says), "no `{says}` in:\n{error}");
    }
}

#[test]
fn other_services_sections_are_ignored_but_named() {
    let env = [
        ("AIRLOCK_KERNEL__URL", "x"),
        ("AIRLOCK_HOME", "y"),
        ("HOME", "z"),
    ];
    let found = try_load(None, &env, &[]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(found.ignored, ["AIRLOCK_KERNEL__URL"]);
}

#[test]
fn what_is_printed_has_no_secrets() {
    let env = [
        ("NATS_URL", "nats://u:hunter2@h:4222"),
        ("NATS_PASSWORD", "hunter2"),
    ];
    let config = loaded(None, &env, &[]);
    let printed = format!(
        "{config:?} {}",
        serde_json::to_string(&config).expect("serialises")
    );
    assert!(!printed.contains("hunter2"), "{printed}");
    assert!(printed.contains("nats://u:***@h:4222"), "{printed}");
}
