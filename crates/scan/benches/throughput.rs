//! How many bytes of clean logs one core scans in a second, in time of the processor, so
//! that other programs on the machine change little.
//!
//! `cargo bench -p airlock-scan` prints the figures; nothing is asserted.

use std::fmt::Write as _;

use airlock_scan::Scanner;
use rustix::time::{ClockId, clock_gettime};

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }
}

/// Lines as services write them.
fn plain_logs(bytes: usize) -> String {
    let mut random = Random(7);
    let mut out = String::with_capacity(bytes + 256);
    while out.len() < bytes {
        let (h, m, s, ms) = (
            random.below(24),
            random.below(60),
            random.below(60),
            random.below(1000),
        );
        let _ = write!(out, "2026-03-04T{h:02}:{m:02}:{s:02}.{ms:03}Z ");
        let _ = match random.below(6) {
            0 => writeln!(
                out,
                "INFO scheduler: job {:08x}-{:04x} dispatched to worker-{} after {} ms",
                random.below(u64::MAX),
                random.below(65536),
                random.below(400),
                random.below(9000)
            ),
            1 => writeln!(
                out,
                "DEBUG http: GET /api/v1/jobs/{:016x}/result 200 {} bytes from 10.0.{}.{}",
                random.below(u64::MAX),
                random.below(90000),
                random.below(256),
                random.below(256)
            ),
            2 => writeln!(
                out,
                "WARN pool image.resize: {} of {} slots used, oldest waiting {} s",
                random.below(64),
                random.below(64),
                random.below(600)
            ),
            3 => writeln!(
                out,
                "INFO ledger: committed {} rows in {}.{:03} ms (batch {})",
                random.below(900),
                random.below(90),
                random.below(1000),
                random.below(1 << 30)
            ),
            4 => writeln!(
                out,
                "ERROR worker: converting /var/lib/data/{}/frame_{:05}.png failed: unexpected end of file at line {}",
                random.below(99),
                random.below(99999),
                random.below(5000)
            ),
            _ => writeln!(
                out,
                "INFO cache: hit ratio 0.{:04}, evicted {} entries, {} remain in the table",
                random.below(10000),
                random.below(999),
                random.below(99999)
            ),
        };
    }
    out
}

fn json_logs(bytes: usize) -> String {
    let mut random = Random(9);
    let mut out = String::with_capacity(bytes + 256);
    while out.len() < bytes {
        let _ = writeln!(
            out,
            r#"{{"ts":"2026-03-04T05:{:02}:{:02}Z","level":"info","job":"{:016x}","topic":"image.resize","ms":{},"msg":"converted frame {} of the batch"}}"#,
            random.below(60),
            random.below(60),
            random.below(u64::MAX),
            random.below(90000),
            random.below(9000)
        );
    }
    out
}

/// Whether the arguments name this measure, or none.
fn is_wanted(name: &str) -> bool {
    let mut names = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    names.next().is_none_or(|wanted| name.contains(&wanted))
}

/// The best of several runs: whatever disturbs only makes it slower.
fn measure(name: &str, input: &str, scanner: &Scanner) {
    if !is_wanted(name) {
        return;
    }
    let best = (0..7)
        .map(|_| {
            let before = processor_seconds();
            let report = scanner.scan(input.as_bytes());
            let took = processor_seconds() - before;
            assert!(report.is_clean(), "{:?}", report.findings.first());
            took
        })
        .fold(f64::INFINITY, f64::min);
    println!(
        "{name}: {:.0} MB/s a core ({} bytes)",
        input.len() as f64 / best / 1e6,
        input.len()
    );
}

fn main() {
    let before = processor_seconds();
    let scanner = Scanner::builtin();
    println!(
        "building the scanner: {:.1} ms",
        (processor_seconds() - before) * 1e3
    );
    measure("plain logs, 8 MiB", &plain_logs((8 << 20) - 512), &scanner);
    measure("JSON logs, 8 MiB", &json_logs((8 << 20) - 512), &scanner);
    measure("plain logs, 1 KiB", &plain_logs(1 << 10), &scanner);
    measure("JSON logs, 1 KiB", &json_logs(1 << 10), &scanner);
}
