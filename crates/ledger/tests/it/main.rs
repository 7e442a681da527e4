//! The ledger against a real Postgres: what is written, what a compare-and-set refuses,
//! and what two writers at once come to.

mod approvals;
mod bundles;
mod cancel;
mod changes;
mod commit;
mod fence;
mod fixture;
mod kernels;
mod letters;
mod list;
mod migrate;
mod output;
mod recover;
mod reports;
mod requeue;
mod retention;
mod run_ends;
mod sagas;
mod second;
mod stale;
mod submit;
mod told;
mod velocity;
mod view;
