//! How busy this worker is, in percent, for the scheduler's choice between workers.
//!
//! The processor load is what this process uses of all the machine's cores, not what
//! the machine is used for: a worker that shares its machine with a build or with the
//! scheduler itself is slower there but not unfit, and a pool whose workers all sit on
//! one busy machine would otherwise get no jobs at all.
//!
//! Read from `/proc`; where that is missing the load is reported as 0, which CAP peers do too.

/// Measures the load of this process since the last sample.
#[derive(Debug, Default)]
pub(crate) struct LoadMeter {
    before: Option<Cpu>,
}

/// Ticks: of this process, and of all cores together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cpu {
    own: u64,
    total: u64,
}

/// Percentages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    pub cpu: f32,
    pub memory: f32,
    /// Of the busiest accelerator; 0 when there is none.
    pub gpu: f32,
}

impl LoadMeter {
    pub fn sample(&mut self) -> Load {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let now = parse_cpu_times(&read("/proc/self/stat"), &read("/proc/stat"));
        let cpu = match (self.before, now) {
            (Some(before), Some(now)) => cpu_load_between(before, now),
            _ => 0.0,
        };
        self.before = now;
        Load {
            cpu,
            memory: parse_memory_load(&read("/proc/meminfo")).unwrap_or(0.0),
            gpu: 0.0,
        }
    }
}

/// Our own line has user and system time as its 14th and 15th fields, counted after the
/// program's name, which may contain anything; the machine's first line is
/// `cpu  user nice system idle iowait irq …`.
fn parse_cpu_times(own: &str, machine: &str) -> Option<Cpu> {
    let (_, after_name) = own.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    let mut fields = machine.lines().next()?.split_whitespace();
    if fields.next() != Some("cpu") {
        return None;
    }
    // Guest time, from the ninth number on, is contained in user time.
    let total = fields.take(8).map_while(|f| f.parse::<u64>().ok()).sum();
    Some(Cpu {
        own: user + system,
        total,
    })
}

fn cpu_load_between(before: Cpu, now: Cpu) -> f32 {
    let total = now.total.saturating_sub(before.total);
    percent(now.own.saturating_sub(before.own).min(total), total)
}

fn parse_memory_load(meminfo: &str) -> Option<f32> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let total = field("MemTotal:")?;
    let available = field("MemAvailable:")?.min(total);
    Some(percent(total - available, total))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a percentage needs no more than a float has"
)]
fn percent(part: u64, whole: u64) -> f32 {
    if whole == 0 {
        0.0
    } else {
        (part as f64 * 100.0 / whole as f64) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_load_is_measured_between_two_samples() {
        let machine = "cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 2 3";
        let own = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 30 20 0 0";
        let before = parse_cpu_times(own, machine).expect("a line");
        assert_eq!(
            before,
            Cpu {
                own: 50,
                total: 100
            }
        );
        let later = "cpu  40 0 30 100 30 0 0 0 9 9\n";
        let now = parse_cpu_times("7 (x) S 1 2 3 4 5 6 7 8 9 10 60 40 0 0", later).expect("a line");
        assert!((cpu_load_between(before, now) - 50.0).abs() < 0.01);
        assert!(cpu_load_between(now, now).abs() < 0.01);
        assert_eq!(parse_cpu_times(own, "intr 1 2"), None);
    }

    #[test]
    fn memory_is_what_is_not_available() {
        let text = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n";
        assert!((parse_memory_load(text).expect("both") - 75.0).abs() < 0.01);
        assert_eq!(parse_memory_load("MemTotal: 5 kB"), None);
    }
}
