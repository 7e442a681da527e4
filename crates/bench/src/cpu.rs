//! Where the processor time went: who to look at when a number disappoints.
//!
//! On a machine whose cores are all busy, throughput is nothing but the time each
//! process takes per job, so the sum over all of them explains the result.

use std::collections::BTreeMap;
use std::path::Path;

/// The kernel counts in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time by name of process.
#[derive(Debug, Clone, Default)]
pub struct CpuTimes(BTreeMap<String, f64>);

impl CpuTimes {
    /// Adds a process with all its children.
    pub fn add_processes(&mut self, name: &str, pids: &[i32]) {
        let seconds: f64 = pids
            .iter()
            .map(|pid| read_cpu_seconds(Path::new(&format!("/proc/{pid}/stat"))))
            .sum();
        *self.0.entry(name.to_owned()).or_default() += seconds;
    }

    /// Adds this process itself.
    pub fn add_own_process(&mut self, name: &str) {
        let seconds = read_cpu_seconds(Path::new("/proc/self/stat"));
        *self.0.entry(name.to_owned()).or_default() += seconds;
    }

    /// What was used since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let used = self.0.iter().map(|(name, seconds)| {
            let before = earlier.0.get(name).copied().unwrap_or(0.0);
            (name.clone(), (seconds - before).max(0.0))
        });
        Self(used.collect())
    }

    /// Microseconds per job, the largest first.
    pub fn per_job(&self, jobs: usize) -> Vec<(&str, f64)> {
        let mut all: Vec<(&str, f64)> = self
            .0
            .iter()
            .map(|(name, seconds)| (name.as_str(), seconds * 1e6 / jobs.max(1) as f64))
            .collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }
}

/// Zero for a process that is gone or a system without `/proc`.
fn read_cpu_seconds(stat: &Path) -> f64 {
    std::fs::read_to_string(stat)
        .ok()
        .and_then(|text| parse_cpu_ticks(&text))
        .map_or(0.0, |ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// User and system time, own and of children that ended.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may hold anything, so it is skipped from its end.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields = rest.split_whitespace().skip(11).take(4);
    let ticks: Vec<u64> = fields.map_while(|word| word.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_read_behind_the_name() {
        let line = "12 (a) b) S 1 12 12 0 -1 4194560 100 0 0 0 7 5 2 1 20 0 1 0 100 0 0";
        assert_eq!(parse_cpu_ticks(line), Some(15));
        assert_eq!(parse_cpu_ticks("nonsense"), None);
    }

    #[test]
    fn only_what_was_used_since_counts() {
        let earlier = CpuTimes(BTreeMap::from([("a".to_owned(), 1.0)]));
        let later = CpuTimes(BTreeMap::from([
            ("a".to_owned(), 1.5),
            ("b".to_owned(), 2.0),
        ]));
        let used = later.since(&earlier);
        assert_eq!(used.per_job(1_000), [("b", 2_000.0), ("a", 500.0)]);
    }
}
