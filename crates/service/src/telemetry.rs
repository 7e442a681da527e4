//! Logs to standard error, traces to an OTLP collector.
//!
//! Invariant: telemetry never slows or stops the service. Spans go through a
//! bounded queue that drops when the collector is away, and flushing at the end
//! has a bound. It is set up once for a process; `airlock dev` does it for all
//! services it hosts.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider,
};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::{LogFormat, TelemetryConfig};

const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);
const FLUSH_BOUND: Duration = Duration::from_secs(2);
const QUEUE: usize = 8192;
const BATCH: usize = 512;

/// Libraries below the exporter: their spans would be exported, which makes
/// spans, which would be exported.
const NOT_TRACED: [&str; 6] = [
    "h2",
    "hyper",
    "hyper_util",
    "tonic",
    "tower",
    "opentelemetry",
];

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("telemetry.log_level or RUST_LOG `{text}` is not a filter")]
    Filter {
        text: String,
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("telemetry.otlp_endpoint {endpoint} cannot be used")]
    Exporter {
        endpoint: String,
        source: ExporterBuildError,
    },
    #[error("telemetry was already set up in this process")]
    Twice(#[from] TryInitError),
}

/// Keeps traces flowing. Call [`Guard::flush`] before the process ends.
#[must_use = "dropping it ends the export of traces"]
#[derive(Debug)]
pub struct Guard {
    provider: Option<SdkTracerProvider>,
}

impl Guard {
    /// Sends what is queued, for at most two seconds. It must be called while the
    /// runtime still runs, since the exporter's connection lives there.
    pub async fn flush(mut self) {
        let Some(provider) = self.provider.take() else {
            return;
        };
        let flushed =
            tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_BOUND));
        match tokio::time::timeout(FLUSH_BOUND * 2, flushed).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "exporting the last traces failed"),
            Ok(Err(error)) => tracing::warn!(%error, "flushing traces failed"),
            Err(_) => tracing::warn!("flushing traces timed out"),
        }
    }
}

/// Sets logs and traces up for the process; `name` becomes `airlock-<name>`. Must
/// be called inside the tokio runtime.
pub fn init(name: &str, config: &TelemetryConfig) -> Result<Guard, TelemetryError> {
    // Checked before anything global is touched.
    let log_filter = build_log_filter(config)?;
    let provider = match config.otlp_endpoint.as_deref() {
        None | Some("") => None,
        Some(endpoint) => Some(build_tracer_provider(name, endpoint, config.sample_ratio)?),
    };

    let terminal = std::io::stderr().is_terminal();
    let human = match config.log_format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let lines = if human {
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(colours)
            .boxed()
    } else {
        tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .json()
            .flatten_event(true)
            .boxed()
    };
    let traces = match &provider {
        None => None,
        Some(provider) => {
            let own = filter_fn(|metadata| {
                let root = metadata.target().split("::").next().unwrap_or_default();
                !NOT_TRACED.contains(&root)
            });
            Some(
                tracing_opentelemetry::layer()
                    .with_tracer(provider.tracer("airlock"))
                    .with_filter(build_log_filter(config)?.and(own)),
            )
        }
    };
    tracing_subscriber::registry()
        .with(traces)
        .with(lines.with_filter(log_filter))
        .try_init()?;
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    if let Some(provider) = &provider {
        opentelemetry::global::set_tracer_provider(provider.clone());
    }
    Ok(Guard { provider })
}

/// `RUST_LOG` where it is set, else the configured level.
fn build_log_filter(config: &TelemetryConfig) -> Result<EnvFilter, TelemetryError> {
    let text = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| config.log_level.clone());
    EnvFilter::try_new(&text).map_err(|source| TelemetryError::Filter { text, source })
}

fn build_tracer_provider(
    name: &str,
    endpoint: &str,
    sample_ratio: f64,
) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .map_err(|source| TelemetryError::Exporter {
            endpoint: crate::mask_url(endpoint),
            source,
        })?;
    let processor = BatchSpanProcessor::builder(exporter)
        .with_batch_config(
            BatchConfigBuilder::default()
                .with_max_queue_size(QUEUE)
                .with_max_export_batch_size(BATCH)
                .with_scheduled_delay(Duration::from_secs(1))
                .build(),
        )
        .build();
    let resource = Resource::builder()
        .with_service_name(format!("airlock-{name}"))
        .with_attributes([
            KeyValue::new("service.namespace", "airlock"),
            KeyValue::new("service.version", crate::VERSION),
            KeyValue::new("process.pid", i64::from(std::process::id())),
        ])
        .build();
    Ok(SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(
            sample_ratio,
        ))))
        .with_resource(resource)
        .build())
}
