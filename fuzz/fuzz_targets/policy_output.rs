//! Output rules and an output: what loads is asked in both phases.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| airlock_policy::fuzz::fuzz_output(bytes));
