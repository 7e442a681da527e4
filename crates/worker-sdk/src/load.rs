//! How busy the machine is, in percent, for the scheduler's choice between workers.
//!
//! Read from `/proc`; where that is missing the load is told as 0, which CAP peers do too.

/// Of the whole machine since the last look.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    before: Option<Cpu>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cpu {
    idle: u64,
    total: u64,
}

/// Percentages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Load {
    pub cpu: f32,
    pub memory: f32,
}

impl Meter {
    pub fn look(&mut self) -> Load {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let now = parse_cpu(&read("/proc/stat"));
        let cpu = match (self.before, now) {
            (Some(before), Some(now)) => busy(before, now),
            _ => 0.0,
        };
        self.before = now;
        Load {
            cpu,
            memory: parse_memory(&read("/proc/meminfo")).unwrap_or(0.0),
        }
    }
}

/// The first line: `cpu  user nice system idle iowait irq …`.
fn parse_cpu(stat: &str) -> Option<Cpu> {
    let mut words = stat.lines().next()?.split_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    // Guest time, from the ninth number on, is contained in user time.
    let numbers: Vec<u64> = words.take(8).map_while(|w| w.parse().ok()).collect();
    let idle = numbers.get(3)? + numbers.get(4).unwrap_or(&0);
    Some(Cpu {
        idle,
        total: numbers.iter().sum(),
    })
}

fn busy(before: Cpu, now: Cpu) -> f32 {
    let total = now.total.saturating_sub(before.total);
    let idle = now.idle.saturating_sub(before.idle).min(total);
    percent(total - idle, total)
}

fn parse_memory(meminfo: &str) -> Option<f32> {
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
    fn percentages_of_the_time_between() {
        let before = parse_cpu("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 2 3").expect("a line");
        let now = parse_cpu("cpu  40 0 30 100 30 0 0 0 9 9\n").expect("a line");
        assert_eq!(
            before,
            Cpu {
                idle: 80,
                total: 100
            }
        );
        assert!((busy(before, now) - 50.0).abs() < 0.01);
        assert!(busy(now, now).abs() < 0.01);
        assert_eq!(parse_cpu("intr 1 2"), None);
    }

    #[test]
    fn memory_is_what_is_not_available() {
        let text = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n";
        assert!((parse_memory(text).expect("both") - 75.0).abs() < 0.01);
        assert_eq!(parse_memory("MemTotal: 5 kB"), None);
    }
}
