//! The numbers, as a table for people and as JSON for programs.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::latency::{FinalBy, Latency};
use crate::machine::{Durability, Machine};
use crate::stack::Decisions;
use crate::throughput::Throughput;

/// Everything that was measured; what was not is absent.
pub struct Report {
    machine: Machine,
    quick: bool,
    pub single: Option<Throughput>,
    pub bulk: Option<Throughput>,
    pub floor: Option<Throughput>,
    pub latency: Option<Latency>,
    pub decisions: Option<Decisions>,
    pub durability: Option<Durability>,
}

/// The JSON file. Rates are jobs per second.
#[derive(Debug, Serialize)]
pub struct Json {
    single: Option<f64>,
    bulk: Option<f64>,
    floor: Option<f64>,
    single_ratio: Option<f64>,
    bulk_ratio: Option<f64>,
    start_p50_ms: Option<f64>,
    start_p99_ms: Option<f64>,
    final_p50_ms: Option<f64>,
    final_p99_ms: Option<f64>,
    final_by: Option<FinalBy>,
    fsync: Option<String>,
    synchronous_commit: Option<String>,
    postgres: Option<String>,
    kernel_calls: Option<u64>,
    kernel_checks: Option<u64>,
    cache_hits: Option<u64>,
    single_jobs: Option<usize>,
    single_seconds: Option<f64>,
    bulk_jobs: Option<usize>,
    bulk_seconds: Option<f64>,
    floor_jobs: Option<usize>,
    floor_seconds: Option<f64>,
    latency_jobs: Option<usize>,
    latency_seconds: Option<f64>,
    cores: usize,
    cpu: String,
    quick: bool,
    debug_build: bool,
}

impl Report {
    pub fn new(machine: Machine, quick: bool) -> Self {
        Self {
            machine,
            quick,
            single: None,
            bulk: None,
            floor: None,
            latency: None,
            decisions: None,
            durability: None,
        }
    }

    /// `of` as a part of the floor.
    fn ratio_to_floor(&self, of: Option<&Throughput>) -> Option<f64> {
        Some(of?.rate() / self.floor.as_ref()?.rate())
    }

    pub fn to_json(&self) -> Json {
        let seconds = |t: &Throughput| round_to_digits(t.took.as_secs_f64(), 3);
        let rate = |t: &Throughput| round_to_digits(t.rate(), 1);
        let (single, bulk, floor) = (
            self.single.as_ref(),
            self.bulk.as_ref(),
            self.floor.as_ref(),
        );
        let latency = self.latency.as_ref();
        Json {
            single: single.map(rate),
            bulk: bulk.map(rate),
            floor: floor.map(rate),
            single_ratio: self.ratio_to_floor(single).map(|r| round_to_digits(r, 3)),
            bulk_ratio: self.ratio_to_floor(bulk).map(|r| round_to_digits(r, 3)),
            start_p50_ms: latency.map(|l| l.start.p50),
            start_p99_ms: latency.map(|l| l.start.p99),
            final_p50_ms: latency.map(|l| l.done.p50),
            final_p99_ms: latency.map(|l| l.done.p99),
            final_by: latency.map(|l| l.final_by),
            fsync: self.durability.as_ref().map(|d| d.fsync.clone()),
            synchronous_commit: self
                .durability
                .as_ref()
                .map(|d| d.synchronous_commit.clone()),
            postgres: self.durability.as_ref().map(|d| d.version.clone()),
            kernel_calls: self.decisions.map(|d| d.calls),
            kernel_checks: self.decisions.map(|d| d.checks),
            cache_hits: self.decisions.map(|d| d.cache_hits),
            single_jobs: single.map(|t| t.jobs),
            single_seconds: single.map(seconds),
            bulk_jobs: bulk.map(|t| t.jobs),
            bulk_seconds: bulk.map(seconds),
            floor_jobs: floor.map(|t| t.jobs),
            floor_seconds: floor.map(seconds),
            latency_jobs: latency.map(|l| l.jobs),
            latency_seconds: latency.map(|l| round_to_digits(l.took.as_secs_f64(), 3)),
            cores: self.machine.cores,
            cpu: self.machine.cpu.clone(),
            quick: self.quick,
            debug_build: cfg!(debug_assertions),
        }
    }

    /// In Markdown, so that it can go into a README as it is.
    pub fn to_markdown(&self) -> String {
        let mut parts = vec![self.render_facts()];
        let rates = self.rates_table();
        if !rates.is_empty() {
            parts.push(rates.to_string());
        }
        if let Some(latency) = &self.latency {
            parts.push(latency_table(latency).to_string());
        }
        parts.extend(self.cpu_time_lines());
        parts.join("\n\n")
    }

    fn render_facts(&self) -> String {
        let mut facts = vec![format!(
            "{} cores, {}",
            self.machine.cores, self.machine.cpu
        )];
        if let Some(d) = &self.durability {
            facts.push(format!(
                "Postgres {}: fsync {}, synchronous_commit {}",
                d.version, d.fsync, d.synchronous_commit
            ));
        }
        if let Some(d) = &self.decisions {
            facts.push(format!(
                "{} kernel calls for {} decisions, {} more from the cache",
                d.calls, d.checks, d.cache_hits
            ));
        }
        if self.quick {
            facts.push("a quick run: for trying, not for quoting".to_owned());
        }
        facts.join("\n")
    }

    fn rates_table(&self) -> Table {
        let mut table = new_table(["phase", "jobs", "seconds", "jobs/s", "of the floor"]);
        let phases = [
            ("single: 64 clients, one job per request", &self.single),
            ("bulk: batches of 500", &self.bulk),
            ("floor: the same stores, bare", &self.floor),
        ];
        for (name, measured) in phases {
            if let Some(measured) = measured {
                let ratio = self.ratio_to_floor(Some(measured));
                table.add_row([
                    name.to_owned(),
                    measured.jobs.to_string(),
                    format!("{:.2}", measured.took.as_secs_f64()),
                    format!("{:.0}", measured.rate()),
                    ratio.map_or_else(String::new, |r| format!("{r:.2}")),
                ]);
            }
        }
        table
    }

    /// Microseconds of processor time per job, by process.
    fn cpu_time_lines(&self) -> Vec<String> {
        let phases = [
            ("single", &self.single),
            ("bulk", &self.bulk),
            ("floor", &self.floor),
        ];
        let lines: Vec<String> = phases
            .into_iter()
            .filter_map(|(name, measured)| {
                let measured = measured.as_ref()?;
                let times = measured.cpu.per_job(measured.jobs);
                let sum: f64 = times.iter().map(|(_, us)| us).sum();
                let parts: Vec<String> = times
                    .iter()
                    .map(|(process, us)| format!("{process} {us:.0}"))
                    .collect();
                Some(format!("{name}: {sum:.0} = {}", parts.join(" + ")))
            })
            .collect();
        if lines.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "Processor time per job in µs\n{}",
            lines.join("\n")
        )]
    }
}

fn latency_table(latency: &Latency) -> Table {
    let mut table = new_table(["at 50 jobs/s", "p50 ms", "p99 ms", "max ms"]);
    let until = match latency.final_by {
        FinalBy::Event => "submit → final (its event received)",
        FinalBy::Ledger => "submit → final (by the ledger's clock)",
    };
    for (name, q) in [
        ("submit → worker start", latency.start),
        (until, latency.done),
    ] {
        table.add_row([
            name.to_owned(),
            format!("{:.2}", q.p50),
            format!("{:.2}", q.p99),
            format!("{:.2}", q.max),
        ]);
    }
    table
}

fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn round_to_digits(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cpu::CpuTimes;
    use crate::latency::Quantiles;

    fn report() -> Report {
        let machine = Machine {
            cores: 2,
            cpu: "Some CPU".to_owned(),
        };
        let measured = |jobs, seconds| {
            Some(Throughput {
                jobs,
                took: Duration::from_secs(seconds),
                cpu: CpuTimes::default(),
            })
        };
        let quantiles = Quantiles {
            p50: 1.5,
            p99: 4.0,
            max: 9.0,
        };
        Report {
            single: measured(20_000, 4),
            bulk: measured(50_000, 5),
            floor: measured(50_000, 4),
            latency: Some(Latency {
                jobs: 1_000,
                took: Duration::from_secs(21),
                start: quantiles,
                done: quantiles,
                final_by: FinalBy::Event,
            }),
            ..Report::new(machine, false)
        }
    }

    #[test]
    fn programs_get_every_promised_field() {
        let json = serde_json::to_value(report().to_json()).expect("json");
        assert_eq!(json["single"], 5_000.0);
        assert_eq!(json["single_ratio"], 0.4);
        assert_eq!(json["bulk_ratio"], 0.8);
        assert_eq!(json["start_p50_ms"], 1.5);
        for field in [
            "floor",
            "bulk",
            "start_p99_ms",
            "final_p50_ms",
            "final_p99_ms",
            "fsync",
            "synchronous_commit",
            "kernel_calls",
            "cache_hits",
            "cores",
            "cpu",
        ] {
            assert!(json.get(field).is_some(), "{field}");
        }
    }

    #[test]
    fn people_get_a_table() {
        let text = report().to_markdown();
        assert!(
            text.contains("| single: 64 clients, one job per request |"),
            "{text}"
        );
        assert!(text.contains("12500"), "{text}");
        assert!(text.contains("submit → worker start"), "{text}");
        let empty = Report::new(Machine::detect(), true).to_markdown();
        assert!(!empty.contains("jobs/s"), "{empty}");
    }

    #[test]
    fn without_a_floor_there_is_no_ratio() {
        let mut report = report();
        report.floor = None;
        assert_eq!(report.to_json().bulk_ratio, None);
    }
}
