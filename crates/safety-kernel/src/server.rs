//! The gRPC listener: bind first, then serve until shutdown.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use airlock_policy::limits;
use airlock_proto::cap::safety_kernel_server::SafetyKernelServer;
use airlock_proto::own::policy_admin_server::PolicyAdminServer;
use airlock_proto::own::policy_batch_server::PolicyBatchServer;
use tokio::net::TcpListener;
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::config::{GrpcConfig, TlsConfig};
use crate::grpc::Kernel;

/// A batch of 1,000 requests fits; a single request has tonic's default of 4 MiB.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

/// As many bundles as there are files in a policy, each as long as a file may be, fit.
const MAX_BUNDLES_BYTES: usize = (limits::FILES + 1) * limits::FILE_BYTES;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("listening on {listen}: {source}")]
    Bind {
        listen: String,
        source: std::io::Error,
    },
    #[error("reading {path} for TLS: {source}")]
    TlsFile {
        path: String,
        source: std::io::Error,
    },
    #[error("serving gRPC: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// The status in the standard gRPC health service, of the server as a whole (the empty
/// name) and of each service.
#[derive(Clone)]
pub struct Serving(HealthReporter);

impl Serving {
    pub async fn set_serving(&self, serving: bool) {
        let status = if serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for name in [
            "",
            SafetyKernelServer::<Kernel>::NAME,
            PolicyBatchServer::<Kernel>::NAME,
            PolicyAdminServer::<Kernel>::NAME,
        ] {
            self.0.set_service_status(name, status).await;
        }
    }
}

/// A bound listener with the services it will serve.
pub struct GrpcServer {
    router: tonic::transport::server::Router,
    incoming: TcpIncoming,
    address: SocketAddr,
    serving: Serving,
}

impl GrpcServer {
    /// Reads the TLS files and binds, so that a mistake in either fails the start.
    pub async fn bind(config: &GrpcConfig, kernel: Kernel) -> Result<Self, ServerError> {
        let bind_error = |source| ServerError::Bind {
            listen: config.listen.clone(),
            source,
        };
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            .max_concurrent_streams(1_024);
        if let Some(tls) = &config.tls {
            let identity = read_tls_identity(tls).await?;
            server = server.tls_config(ServerTlsConfig::new().identity(identity))?;
        }
        let listener = TcpListener::bind(&config.listen)
            .await
            .map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        let (reporter, health) = tonic_health::server::health_reporter();
        let router = server
            .add_service(health)
            .add_service(SafetyKernelServer::new(kernel.clone()))
            .add_service(
                PolicyAdminServer::new(kernel.clone()).max_decoding_message_size(MAX_BUNDLES_BYTES),
            )
            .add_service(PolicyBatchServer::new(kernel).max_decoding_message_size(MAX_BATCH_BYTES));
        Ok(Self {
            router,
            incoming: TcpIncoming::from(listener).with_nodelay(Some(true)),
            address,
            serving: Serving(reporter),
        })
    }

    /// Where it listens; with port 0 in the configuration, the port it was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn serving(&self) -> Serving {
        self.serving.clone()
    }

    /// Serves until `stop` is done, then lets open calls finish.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Self {
            router,
            incoming,
            serving,
            ..
        } = self;
        let stop = async move {
            stop.await;
            serving.set_serving(false).await;
        };
        router.serve_with_incoming_shutdown(incoming, stop).await?;
        Ok(())
    }
}

async fn read_tls_identity(tls: &TlsConfig) -> Result<Identity, ServerError> {
    let read = async |path: &str| {
        tokio::fs::read(path)
            .await
            .map_err(|source| ServerError::TlsFile {
                path: path.to_owned(),
                source,
            })
    };
    Ok(Identity::from_pem(
        read(&tls.cert).await?,
        read(&tls.key).await?,
    ))
}
