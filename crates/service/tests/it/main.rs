//! The service crate from the outside: real files, sockets, signals, processes.

mod config;
mod http;
mod ops;
mod probe;
mod process;
mod reload;
mod slow_clients;
mod supervisor;
