//! The gateway: REST in, the ledger's answers out.
//!
//! What must stay true: a 2xx answer to a submission means that the job is committed
//! in the ledger. Everything after the commit (the wake-up on the bus, the events a
//! waiting client listens for) may be lost without harm, so NATS may be down and the
//! gateway still accepts; without Postgres it answers 503 until Postgres is back.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | the configuration |
//! | [`service`] | the service: its parts put together |
//! | [`http`] | the route table, the edge every request passes, one file per resource |
//! | [`auth`] | API keys, the caller behind a request, the permission of each route |
//! | [`limits`] | quotas per API key, admission of requests, the limit on open jobs |
//! | [`submit`] | a request's JSON to a job, group commit, wake-ups on the bus |
//! | [`view`] | how jobs, dead letters and approvals are shown |
//! | [`waiting`] | clients that wait for a job's end |
//! | [`dlq`] | which dead letters a request is about, and their gauge |
//! | [`policy`] | the safety kernel's client, bundles, what each kernel has loaded |
//! | [`scanner`] | the scanner of the routes under `/api/v1/output` |
//! | [`tasks`] | `POST /tasks`: a time and a payload |
//! | [`connections`], [`retry`] | the connections to Postgres and NATS |
//! | [`leader_health`] | whether a scheduler leads and gets on with its work |

pub mod auth;
pub mod config;
mod connections;
mod dlq;
mod http;
mod leader_health;
mod limits;
mod metrics;
mod policy;
mod retry;
mod scanner;
mod service;
mod submit;
mod tasks;
mod trace;
mod view;
mod waiting;

pub use config::GatewayConfig;
pub use service::Gateway;
