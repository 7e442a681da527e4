//! The gRPC listener: bind first, then serve until shutdown.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use airlock_proto::cap::output_policy_service_server::OutputPolicyServiceServer;
use airlock_proto::own::output_batch_server::OutputBatchServer;
use tokio::net::TcpListener;
use tonic::server::NamedService;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::config::{GrpcConfig, TlsConfig};
use crate::grpc::OutputService;

/// A single output may be larger than what is scanned of it, and is then a finding.
pub const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;
/// The masked copies are bounded by the service; the rest is findings and reasons.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;
/// A scan after the commit has 30 s.
const MAX_CALL: Duration = Duration::from_secs(35);

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
            OutputPolicyServiceServer::<OutputService>::NAME,
            OutputBatchServer::<OutputService>::NAME,
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
    pub async fn bind(config: &GrpcConfig, service: OutputService) -> Result<Self, ServerError> {
        let bind_error = |source| ServerError::Bind {
            listen: config.listen.clone(),
            source,
        };
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            // No longer than the longest deadline of a caller; a shorter one is kept too.
            .timeout(MAX_CALL)
            .max_concurrent_streams(256);
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
            .add_service(
                OutputPolicyServiceServer::new(service.clone())
                    .max_decoding_message_size(MAX_REQUEST_BYTES)
                    .max_encoding_message_size(MAX_RESPONSE_BYTES),
            )
            .add_service(
                OutputBatchServer::new(service)
                    .max_decoding_message_size(MAX_REQUEST_BYTES)
                    .max_encoding_message_size(MAX_RESPONSE_BYTES),
            );
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
