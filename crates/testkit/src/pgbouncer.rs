//! A private PgBouncer before a private Postgres.

use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;

use anyhow::Context;

use crate::child::Launch;
use crate::dir::TestDir;
use crate::locate::Program;
use crate::postgres::{self, Postgres};
use crate::server::Server;

pub struct PgBouncer {
    server: Server,
    /// Its settings, which another user reads.
    _settings: tempfile::TempDir,
}

impl PgBouncer {
    /// `pool_mode` is `session`, `transaction` or `statement`.
    pub async fn start(postgres: &Postgres, pool_mode: &str) -> anyhow::Result<Self> {
        let program = Program::PgBouncer.locate()?;
        let dir = TestDir::new()?;
        let run_as = postgres::find_unprivileged_user()?;
        let settings = tempfile::Builder::new()
            .prefix("airlock-pgbouncer-")
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir_in(postgres::reachable_temp_dir(run_as))
            .context("a folder for PgBouncer's settings")?;
        let file = settings.path().join("pgbouncer.ini");
        let (host, port) = (postgres.addr().ip(), postgres.port());
        let launch = |own_port: u16| {
            // What the driver says when it connects and PgBouncer would not know.
            let text = format!(
                "[databases]\n\
                 airlock = host={host} port={port} dbname=airlock user=airlock\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\nlisten_port = {own_port}\nunix_socket_dir =\n\
                 auth_type = any\npool_mode = {pool_mode}\ndefault_pool_size = 20\n\
                 ignore_startup_parameters = options,extra_float_digits\n"
            );
            std::fs::write(&file, text).context("writing PgBouncer's settings")?;
            let mut launch = Launch::new(program.clone(), settings.path());
            launch.args.push(file.clone().into());
            launch.run_as = run_as;
            Ok(launch)
        };
        let server = Server::start("pgbouncer", &dir, launch, |addr| async move {
            postgres::run_query(addr, "airlock", "airlock", "SELECT 1")
                .await
                .map(drop)
        })
        .await?;
        Ok(Self {
            server,
            _settings: settings,
        })
    }

    pub fn url(&self) -> String {
        format!("postgres://airlock@{}/airlock", self.addr())
    }
}

impl Deref for PgBouncer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
