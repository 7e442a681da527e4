//! How long each engine takes for one decision, over the whole sample.
//!
//! The engines take turns, round by round, so that what else runs on the machine
//! meets all of them; each is shown by its quietest round.

use std::hint::black_box;
use std::time::{Duration, Instant};

use policy_compare::{REQUESTS, engines};

const ROUNDS: usize = 30;

fn main() {
    let mut engines = engines();
    let mut best = vec![Duration::MAX; engines.len()];
    for _ in 0..ROUNDS {
        for (engine, best) in engines.iter_mut().zip(&mut best) {
            let started = Instant::now();
            for request in 0..REQUESTS {
                black_box(engine.allows(black_box(request)));
            }
            *best = started.elapsed().min(*best);
        }
    }
    let per = |total: Duration| total.as_secs_f64() * 1e6 / REQUESTS as f64;
    let ours = per(best[0]);
    for (engine, best) in engines.iter().zip(&best) {
        let each = per(*best);
        println!(
            "{:<16} {each:>9.3} µs a decision, {:>7.1} times ours",
            engine.name(),
            each / ours
        );
    }
    let slower = best.iter().skip(1).all(|b| *b > best[0]);
    assert!(slower, "another engine is faster");
}
