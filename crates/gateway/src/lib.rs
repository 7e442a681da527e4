//! The gateway: REST in, the ledger's answers out.
//!
//! What must stay true: a 2xx answer to a submission means that the job is committed
//! in the ledger. Everything after the commit (the wake-up on the bus, the events a
//! waiting client listens for) may be lost without harm, so NATS may be down and the
//! gateway still accepts; without Postgres it answers 503 until Postgres is back.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | the settings |
//! | [`host`] | the parts put together, the links to Postgres and NATS |
//! | [`http`] | routes, admission, authentication, problems |
//! | [`body`], [`decode`], [`mistakes`] | a request's JSON to a job, with every mistake named |
//! | [`shares`] | room that keys share, so that none takes all of it |
//! | [`commit`] | group commit: concurrent submissions share transactions |
//! | [`kernel`] | what the policy would say, for those who ask |
//! | [`ahead`], [`wake`], [`late`] | what the scheduler is told during and after a commit |
//! | [`waiting`] | clients that wait for a job's end |
//! | [`open_jobs`] | how many jobs may be open, counted in the background |
//! | [`tasks`] | the plainest way in: a time and a payload |
//! | [`explain`] | what a job waits for, in a sentence |
//! | [`letters`], [`letters_gauge`] | dead letters as they are asked for, shown and counted |
//! | [`view`], [`cursor`], [`query`] | how jobs are shown and listed |

pub mod ahead;
pub mod auth;
pub mod body;
pub mod bundle_check;
pub mod changes;
pub mod commit;
pub mod config;
pub mod cursor;
pub mod decode;
pub mod explain;
pub mod host;
pub mod http;
pub mod kernel;
pub mod kernels;
pub mod late;
pub mod letters;
pub mod letters_gauge;
pub mod links;
pub mod metrics;
pub mod mistakes;
pub mod open_jobs;
pub mod policy_query;
pub mod problem;
pub mod query;
pub mod retry;
pub mod shares;
pub mod tasks;
pub mod trace;
pub mod view;
pub mod waiting;
pub mod wake;

pub use config::GatewayConfig;
pub use host::Gateway;
