//! The counters of a connection, exported beside the service's own metrics.
//!
//! The libraries that keep connections know nothing of a registry: they count in plain
//! atomics and describe each counter. Here those are read at every scrape.
//!
//! What must stay true: a shown count never goes down, also when the connection is made
//! anew and begins to count at nothing.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use airlock_settings::lock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::Metrics;

/// A name, and what it stands for.
type Named = (&'static str, &'static str);

/// The metrics of a link: the prefix of every name, its counters in their order, and the
/// gauge that is 1 while the link is up.
pub type LinkMetricNames = (&'static str, &'static [Named], Named);

/// The counts at one moment, and whether the link is up.
type Read = Box<dyn Fn() -> (Vec<u64>, bool) + Send + Sync>;

/// The metrics of one link of a service. Clones share them.
#[derive(Clone)]
pub struct LinkMetrics(Arc<State>);

struct State {
    prefix: &'static str,
    counts: &'static [Named],
    up: Named,
    readings: Mutex<Readings>,
}

#[derive(Default)]
struct Readings {
    /// What earlier connections counted.
    before: Vec<u64>,
    now: Option<Read>,
}

impl Readings {
    fn read(&self) -> (Vec<u64>, bool) {
        let (mut counts, up) = self.now.as_ref().map_or_else(Default::default, |now| now());
        if counts.len() < self.before.len() {
            counts.resize(self.before.len(), 0);
        }
        for (count, before) in counts.iter_mut().zip(&self.before) {
            *count += before;
        }
        (counts, up)
    }
}

impl LinkMetrics {
    /// Shows each count as `<prefix>_<name>_total` and the gauge as `<prefix>_<name>`; all
    /// are zero until a connection is [followed](Self::set_reader).
    pub fn new(metrics: &Metrics, (prefix, counts, up): LinkMetricNames) -> Self {
        let link = Self(Arc::new(State {
            prefix,
            counts,
            up,
            readings: Mutex::default(),
        }));
        let collector = Box::new(link.clone());
        metrics.with_registry(|registry| registry.register_collector(collector));
        link
    }

    /// From now on `read` gives the counters, in their order, and whether the link is up.
    /// What was counted before stays counted.
    pub fn set_reader(&self, read: impl Fn() -> (Vec<u64>, bool) + Send + Sync + 'static) {
        let mut readings = self.readings();
        readings.before = readings.read().0;
        readings.now = Some(Box::new(read));
    }

    fn readings(&self) -> MutexGuard<'_, Readings> {
        lock(&self.0.readings)
    }
}

impl fmt::Debug for LinkMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkMetrics({})", self.0.prefix)
    }
}

impl Collector for LinkMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let (counts, up) = self.readings().read();
        let prefix = self.0.prefix;
        for (place, (name, help)) in self.0.counts.iter().enumerate() {
            let metric = ConstCounter::new(counts.get(place).copied().unwrap_or_default());
            let name = format!("{prefix}_{name}");
            let help = with_full_stop(help);
            metric.encode(encoder.encode_descriptor(
                &name,
                &help,
                None,
                metric.metric_type(),
            )?)?;
        }
        let (name, help) = self.0.up;
        let metric = ConstGauge::new(i64::from(up));
        let (name, help) = (format!("{prefix}_{name}"), with_full_stop(help));
        metric.encode(encoder.encode_descriptor(&name, &help, None, metric.metric_type())?)
    }
}

/// With one full stop, as the registry writes its own.
fn with_full_stop(help: &str) -> String {
    format!("{}.", help.trim().trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: &[Named] = &[("dials", " Times it was dialled."), ("drops", "Drops")];

    #[test]
    fn counts_begin_at_nothing_and_never_go_down() {
        let metrics = Metrics::default();
        let shown = ("x_line", COUNTS, ("up", "1 while it is up"));
        let link = LinkMetrics::new(&metrics, shown);
        let text = || metrics.encode().expect("encodes");
        assert!(text().contains("x_line_dials_total 0\n"), "{}", text());
        link.set_reader(|| (vec![3, 1], true));
        let first = text();
        assert!(first.contains("# HELP x_line_dials Times it was dialled.\n"));
        assert!(first.contains("# TYPE x_line_dials counter\n"), "{first}");
        assert!(first.contains("x_line_dials_total 3\n"), "{first}");
        assert!(first.contains("x_line_up 1\n"), "{first}");
        // Another connection begins at nothing.
        link.set_reader(|| (vec![1, 0], false));
        let second = text();
        assert!(second.contains("x_line_dials_total 4\n"), "{second}");
        assert!(second.contains("x_line_drops_total 1\n"), "{second}");
        assert!(second.contains("x_line_up 0\n"), "{second}");
    }
}
