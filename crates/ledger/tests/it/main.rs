//! The ledger against a real Postgres: what is written, what a compare-and-set refuses,
//! and what two writers at once come to.

mod bed;
mod cancel;
mod changes;
mod commit;
mod fence;
mod letters;
mod list;
mod migrate;
mod recover;
mod requeue;
mod submit;
mod view;
