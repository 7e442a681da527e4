//! Ports that no parallel test takes too.
//!
//! "Bind port 0, close it, use the number" is a race: the kernel hands the same
//! number to the next outgoing connection. So ports come from below the range
//! of outgoing connections, at random, each held by a file lock for as long as
//! it is in use. The lock is the operating system's: it ends with the process,
//! and its file is never deleted, because deleting it would let two processes
//! lock two different files of one name.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, bail};

use crate::random;
use crate::sync::lock;

/// Below Linux's (32768) and macOS's (49152) outgoing range, above the ports
/// that servers usually live on.
const FIRST: u64 = 12_000;
const LAST: u64 = 31_999;
const TRIES: usize = 500;

/// A port of our own on 127.0.0.1, until dropped.
pub struct PortLease {
    port: u16,
    _lock: File,
}

impl PortLease {
    pub fn new() -> anyhow::Result<Self> {
        let folder = lock_folder()?;
        for _ in 0..TRIES {
            let random = random::random_u64()?;
            let port = u16::try_from(FIRST + random % (LAST - FIRST + 1))?;
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(folder.join(format!("{port}.lock")))
                .context("opening a port's lock file")?;
            if file.try_lock().is_err() {
                continue;
            }
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(Self { port, _lock: file });
            }
        }
        bail!("no free port between {FIRST} and {LAST} after {TRIES} tries")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }
}

/// A port that stays ours until this process ends.
pub fn free_port() -> anyhow::Result<u16> {
    static LEASES: Mutex<Vec<PortLease>> = Mutex::new(Vec::new());
    let lease = PortLease::new()?;
    let port = lease.port();
    lock(&LEASES).push(lease);
    Ok(port)
}

fn lock_folder() -> anyhow::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = std::env::temp_dir().join(format!("airlock-testkit-ports-{user}"));
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn leased_ports_differ_and_can_be_bound() {
        let leases: Vec<_> = (0..50).map(|_| PortLease::new().expect("lease")).collect();
        let ports: HashSet<_> = leases.iter().map(PortLease::port).collect();
        assert_eq!(ports.len(), leases.len());
        for lease in &leases {
            TcpListener::bind(lease.addr()).expect("binds");
        }
    }

    #[test]
    fn a_leased_port_cannot_be_leased_again_before_it_is_dropped() {
        let lease = PortLease::new().expect("lease");
        let path = lock_folder()
            .expect("folder")
            .join(format!("{}.lock", lease.port()));
        let other = File::open(path).expect("opens");
        assert!(other.try_lock().is_err());
        drop(lease);
        assert!(other.try_lock().is_ok());
    }
}
