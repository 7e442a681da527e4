//! As much of an etcd client as an election needs.
//!
//! Every request goes to one endpoint; when that one does not answer, to the next, each at
//! most once. All requests here may be repeated: a lease that was granted twice runs out, and
//! a key that we created already is recognised by its lease.

use std::time::Duration;

use airlock_proto::etcd as pb;
use airlock_settings::Secret;
use pb::auth_client::AuthClient;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::request_op::Request as Op;
use pb::response_op::Response as OpAnswer;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use crate::EtcdConfig;

/// What can go wrong with etcd.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// No endpoint answered, or none that can work.
    #[error("etcd is unavailable: {0}")]
    Unavailable(String),
    /// It answers, and will not have it.
    #[error("etcd refuses {doing}: {message}")]
    Refused {
        doing: &'static str,
        message: String,
    },
    #[error("election.etcd.{setting}: {message}")]
    Settings {
        setting: &'static str,
        message: String,
    },
}

impl EtcdError {
    /// Whether the same again would fail again.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Unavailable(_) => false,
            Self::Refused { .. } | Self::Settings { .. } => true,
        }
    }
}

/// A lease as it was granted.
pub(super) struct Granted {
    pub id: i64,
    pub ttl: Duration,
}

/// Why a watch ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Deleted,
    Compacted,
}

type Token = Option<MetadataValue<Ascii>>;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct EtcdClient {
    /// One channel for each endpoint; they connect when they are used.
    channels: Vec<Channel>,
    current: usize,
    timeout: Duration,
    credentials: Option<(String, Secret)>,
    token: Token,
}

impl EtcdClient {
    pub async fn new(config: &EtcdConfig) -> Result<Self, EtcdError> {
        let tls = tls_config(config).await?;
        let mut channels = Vec::new();
        for url in &config.endpoints {
            let wrong = |e: tonic::transport::Error| EtcdError::Settings {
                setting: "endpoints",
                message: format!("{url}: {e}"),
            };
            let mut endpoint = Endpoint::from_shared(url.clone())
                .map_err(wrong)?
                .connect_timeout(config.request_timeout);
            if url.starts_with("https://") {
                endpoint = endpoint.tls_config(tls.clone()).map_err(wrong)?;
            }
            channels.push(endpoint.connect_lazy());
        }
        let credentials = config
            .user
            .clone()
            .map(|user| (user, config.password.clone().unwrap_or_default()));
        Ok(Self {
            channels,
            current: 0,
            timeout: config.request_timeout,
            credentials,
            token: None,
        })
    }

    /// Whether the key is there, and the revision of that answer.
    pub async fn is_held(&mut self, key: &str) -> Result<(bool, i64), EtcdError> {
        let message = range(key);
        let answer = self
            .call("reading the leader key", |channel, token| {
                let request = with_token(message.clone(), &token);
                async move { Ok(KvClient::new(channel).range(request).await?.into_inner()) }
            })
            .await?;
        Ok((!answer.kvs.is_empty(), revision(answer.header)))
    }

    pub async fn grant(&mut self, ttl: Duration) -> Result<Granted, EtcdError> {
        let message = pb::LeaseGrantRequest {
            ttl: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1),
            id: 0,
        };
        let answer = self
            .call("granting a lease", |channel, token| {
                let request = with_token(message, &token);
                async move {
                    let answer = LeaseClient::new(channel).lease_grant(request).await?;
                    Ok(answer.into_inner())
                }
            })
            .await?;
        Ok(Granted {
            id: answer.id,
            ttl: seconds(answer.ttl),
        })
    }

    /// Ends a lease and its key; one that is over already is as good.
    pub async fn revoke(&mut self, id: i64) -> Result<(), EtcdError> {
        let message = pb::LeaseRevokeRequest { id };
        self.call("revoking a lease", |channel, token| {
            let request = with_token(message, &token);
            async move {
                match LeaseClient::new(channel).lease_revoke(request).await {
                    Err(status) if status.code() != Code::NotFound => Err(status),
                    _ => Ok(()),
                }
            }
        })
        .await
    }

    /// What is left of a lease after keeping it alive; `None` when it is over.
    pub async fn keep_alive(&mut self, id: i64) -> Result<Option<Duration>, EtcdError> {
        let message = pb::LeaseKeepAliveRequest { id };
        let answer = self
            .call("keeping a lease alive", |channel, token| {
                let request = with_token(tokio_stream::once(message), &token);
                async move {
                    let answers = LeaseClient::new(channel).lease_keep_alive(request).await?;
                    let answer = answers.into_inner().message().await?;
                    answer.ok_or_else(|| Status::unavailable("the stream ended"))
                }
            })
            .await?;
        Ok((answer.ttl > 0).then(|| seconds(answer.ttl)))
    }

    /// Creates the key with a lease, if it is absent: whether it is ours then, and the
    /// revision of that answer.
    pub async fn create(
        &mut self,
        key: &str,
        value: &str,
        lease: i64,
    ) -> Result<(bool, i64), EtcdError> {
        let message = pb::TxnRequest {
            compare: vec![pb::Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Create.into(),
                key: key.to_owned().into(),
                target_union: Some(TargetUnion::CreateRevision(0)),
            }],
            success: vec![pb::RequestOp {
                request: Some(Op::RequestPut(pb::PutRequest {
                    key: key.to_owned().into(),
                    value: value.to_owned().into(),
                    lease,
                })),
            }],
            failure: vec![pb::RequestOp {
                request: Some(Op::RequestRange(range(key))),
            }],
        };
        let answer = self
            .call("creating the leader key", |channel, token| {
                let request = with_token(message.clone(), &token);
                async move { Ok(KvClient::new(channel).txn(request).await?.into_inner()) }
            })
            .await?;
        // A transaction whose answer was lost is asked for again, and finds its own key.
        let ours = answer.responses.iter().any(|op| match &op.response {
            Some(OpAnswer::ResponseRange(found)) => found.kvs.iter().any(|kv| kv.lease == lease),
            _ => false,
        });
        Ok((answer.succeeded || ours, revision(answer.header)))
    }

    /// Until the key is deleted, looking from revision `from` on.
    pub async fn wait_for_delete(&mut self, key: &str, from: i64) -> Result<Waited, EtcdError> {
        let message = pb::WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(pb::WatchCreateRequest {
                key: key.to_owned().into(),
                start_revision: from,
            })),
        };
        // The request's stream stays open, or etcd ends the watch.
        let mut answers = self
            .call("watching the leader key", |channel, token| {
                let (sender, receiver) = tokio::sync::mpsc::channel(1);
                let requests = tokio_stream::wrappers::ReceiverStream::new(receiver);
                let request = with_token(requests, &token);
                let message = message.clone();
                async move {
                    // The channel has room for it, and its other end is here.
                    let _ = sender.send(message).await;
                    let answers = WatchClient::new(channel).watch(request).await?;
                    Ok((sender, answers.into_inner()))
                }
            })
            .await?;
        loop {
            match answers.1.message().await {
                Ok(Some(answer)) if answer.compact_revision > 0 => return Ok(Waited::Compacted),
                Ok(Some(answer)) if answer.canceled => {
                    return Err(EtcdError::Unavailable(answer.cancel_reason));
                }
                Ok(Some(answer)) => {
                    let deleted = pb::event::EventType::Delete as i32;
                    if answer.events.iter().any(|e| e.r#type == deleted) {
                        return Ok(Waited::Deleted);
                    }
                }
                Ok(None) => {
                    self.use_next_endpoint();
                    return Err(EtcdError::Unavailable("the watch ended".to_owned()));
                }
                Err(status) => {
                    self.use_next_endpoint();
                    return Err(EtcdError::Unavailable(status.message().to_owned()));
                }
            }
        }
    }

    fn use_next_endpoint(&mut self) {
        self.current = (self.current + 1) % self.channels.len().max(1);
    }

    /// Asks one endpoint after the other, beginning with the one that answered last.
    async fn call<T, F>(
        &mut self,
        doing: &'static str,
        ask: impl Fn(Channel, Token) -> F + Sync,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let mut problems = Vec::new();
        // One more, for a token that has expired.
        let mut tries = self.channels.len();
        let mut renewed_token = false;
        while tries > 0 {
            let Some(channel) = self.channels.get(self.current).cloned() else {
                break;
            };
            let limit = self.timeout;
            let asked = async {
                self.log_in(&channel).await?;
                ask(channel, self.token.clone()).await
            };
            let status = match tokio::time::timeout(limit, asked).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            if status.code() == Code::Unauthenticated && !renewed_token {
                self.token = None;
                renewed_token = true;
                continue;
            }
            if is_refusal(&status) {
                return Err(EtcdError::Refused {
                    doing,
                    message: status.message().to_owned(),
                });
            }
            problems.push(status.message().to_owned());
            self.use_next_endpoint();
            tries -= 1;
        }
        problems.dedup();
        Err(EtcdError::Unavailable(format!(
            "{doing}: {}",
            problems.join("; ")
        )))
    }

    async fn log_in(&mut self, channel: &Channel) -> Result<(), Status> {
        let Some((name, password)) = &self.credentials else {
            return Ok(());
        };
        if self.token.is_some() {
            return Ok(());
        }
        let request = pb::AuthenticateRequest {
            name: name.clone(),
            password: password.expose().to_owned(),
        };
        let answer = AuthClient::new(channel.clone())
            .authenticate(request)
            .await?
            .into_inner();
        let token = answer
            .token
            .parse()
            .map_err(|_| Status::internal("the token is not ASCII"))?;
        self.token = Some(token);
        Ok(())
    }
}

/// Whether every endpoint would say the same.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::PermissionDenied
            | Code::InvalidArgument
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

fn with_token<T>(message: T, token: &Token) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

fn range(key: &str) -> pb::RangeRequest {
    pb::RangeRequest {
        key: key.to_owned().into(),
    }
}

fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.map_or(0, |h| h.revision)
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

async fn tls_config(config: &EtcdConfig) -> Result<ClientTlsConfig, EtcdError> {
    let mut tls = ClientTlsConfig::new();
    if let Some(path) = &config.tls_ca {
        tls = tls.ca_certificate(Certificate::from_pem(read_pem("tls_ca", path).await?));
    }
    if let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) {
        tls = tls.identity(Identity::from_pem(
            read_pem("tls_cert", cert).await?,
            read_pem("tls_key", key).await?,
        ));
    }
    if let Some(domain) = &config.tls_domain {
        tls = tls.domain_name(domain);
    }
    Ok(tls)
}

async fn read_pem(setting: &'static str, path: &str) -> Result<Vec<u8>, EtcdError> {
    tokio::fs::read(path)
        .await
        .map_err(|e| EtcdError::Settings {
            setting,
            message: format!("{path}: {e}"),
        })
}
