//! The client itself, and the calls about jobs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use airlock_api::{
    BatchItem, BatchResponse, CancelRequest, CancelResponse, Explanation, Job, JobPage,
    ListRequest, Problem, SubmitRequest, SubmitResponse,
};
use backon::{ExponentialBuilder, Retryable};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::ClientError;

/// How long one call may take, waiting for a job's end not counted.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(40);
/// The longest a single call waits for a job's end; longer waits are several calls.
pub(crate) const MAX_WAIT_PER_CALL: Duration = Duration::from_secs(30);
const DEFAULT_RETRIES: usize = 5;
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(50);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);

/// A client of one gateway. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Arc<str>,
    headers: HeaderMap,
    pub(crate) retries: usize,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the headers: the key is among them.
        write!(f, "Client({})", self.base)
    }
}

#[derive(Serialize)]
struct BatchRequest<'a> {
    jobs: &'a [SubmitRequest],
}

impl Client {
    /// A client of the gateway at `url`, as in `http://127.0.0.1:8080`.
    pub fn new(url: &str, key: &str) -> Result<Self, ClientError> {
        let base = url.trim_end_matches('/');
        if !base.starts_with("http://") && !base.starts_with("https://") {
            return Err(ClientError::Config(
                "the gateway's URL must start with http:// or https://".to_owned(),
            ));
        }
        let http = reqwest::Client::builder()
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(5))
            .pool_max_idle_per_host(1_024)
            .build()
            .map_err(ClientError::Transport)?;
        let client = Self {
            http,
            base: base.into(),
            headers: HeaderMap::new(),
            retries: DEFAULT_RETRIES,
        };
        // Without a key none is sent, so that the gateway can tell it from a wrong one.
        if key.is_empty() {
            return Ok(client);
        }
        client.with_header("x-api-key", key, "the API key")
    }

    /// From `AIRLOCK_URL` (by default the local gateway) and `AIRLOCK_API_KEY`.
    pub fn from_env() -> Result<Self, ClientError> {
        let url = std::env::var("AIRLOCK_URL")
            .ok()
            .filter(|url| !url.is_empty());
        let key = std::env::var("AIRLOCK_API_KEY")
            .ok()
            .filter(|key| !key.is_empty())
            .map(SecretString::from)
            .ok_or_else(|| ClientError::Config("AIRLOCK_API_KEY is not set".to_owned()))?;
        let url = url.as_deref().unwrap_or("http://127.0.0.1:8080");
        Self::new(url, key.expose_secret())
    }

    /// Acts for this tenant; only an administrator's key may name another than its own.
    pub fn for_tenant(self, tenant: &str) -> Result<Self, ClientError> {
        self.with_header("x-tenant-id", tenant, "the tenant")
    }

    /// Sends this `traceparent` with every call.
    pub fn with_traceparent(self, traceparent: &str) -> Result<Self, ClientError> {
        self.with_header("traceparent", traceparent, "the traceparent")
    }

    /// How often a call is repeated when the gateway is away or busy. With 0, no
    /// idempotency keys are generated either.
    pub fn with_retries(mut self, retries: usize) -> Self {
        self.retries = retries;
        self
    }

    fn with_header(
        mut self,
        name: &'static str,
        value: &str,
        what: &str,
    ) -> Result<Self, ClientError> {
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| ClientError::Config(format!("{what} cannot be sent in a header")))?;
        value.set_sensitive(name == "x-api-key");
        self.headers.insert(HeaderName::from_static(name), value);
        Ok(self)
    }

    /// Where the gateway is.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Submits a job; when this returns, it is committed.
    pub async fn submit(&self, request: &SubmitRequest) -> Result<SubmitResponse, ClientError> {
        let body = encode_json(request)?;
        let key = self.new_key_if_missing(request);
        self.call_with_retries(self.retries, || {
            let call = self.request_builder(Method::POST, "/api/v1/jobs", CALL_TIMEOUT);
            send_and_decode(with_json_body(
                with_idempotency_key(call, key.as_deref()),
                body.clone(),
            ))
        })
        .await
    }

    /// Submits a job and waits for its end, at most for `bound`. The job that comes back
    /// may not have ended; its state tells.
    pub async fn submit_wait(
        &self,
        request: &SubmitRequest,
        bound: Duration,
    ) -> Result<Job, ClientError> {
        let deadline = Instant::now() + bound;
        let body = encode_json(request)?;
        let key = self.new_key_if_missing(request);
        let job: Job = self
            .call_with_retries(self.retries, || {
                let wait = bound.min(MAX_WAIT_PER_CALL);
                let path = format!("/api/v1/jobs?wait={}ms", wait.as_millis());
                let call = self.request_builder(Method::POST, &path, CALL_TIMEOUT + wait);
                send_and_decode(with_json_body(
                    with_idempotency_key(call, key.as_deref()),
                    body.clone(),
                ))
            })
            .await?;
        if job.state.is_final() || Instant::now() >= deadline {
            return Ok(job);
        }
        self.wait(&job.job_id, deadline - Instant::now()).await
    }

    /// Submits many jobs at once; one outcome for each, in order.
    pub async fn submit_batch(
        &self,
        requests: &[SubmitRequest],
    ) -> Result<Vec<Result<SubmitResponse, Box<Problem>>>, ClientError> {
        let body = if self.retries > 0 {
            let mut keyed = requests.to_vec();
            for request in &mut keyed {
                request
                    .idempotency_key
                    .get_or_insert_with(new_idempotency_key);
            }
            encode_json(&BatchRequest { jobs: &keyed })?
        } else {
            encode_json(&BatchRequest { jobs: requests })?
        };
        let answer: BatchResponse = self
            .call_with_retries(self.retries, || {
                let call = self.request_builder(Method::POST, "/api/v1/jobs/batch", CALL_TIMEOUT);
                send_and_decode(with_json_body(call, body.clone()))
            })
            .await?;
        Ok(answer
            .results
            .into_iter()
            .map(|item| match item {
                BatchItem::Accepted(accepted) => Ok(accepted),
                BatchItem::Rejected { error } => Err(error),
            })
            .collect())
    }

    pub async fn get(&self, job_id: &str) -> Result<Job, ClientError> {
        let path = job_path(job_id, "")?;
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    /// The job once it has ended, or as it is after `bound`.
    pub async fn wait(&self, job_id: &str, bound: Duration) -> Result<Job, ClientError> {
        let deadline = Instant::now() + bound;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait = left.min(MAX_WAIT_PER_CALL);
            let path = job_path(job_id, &format!("?wait={}ms", wait.as_millis()))?;
            let job: Job = self
                .call_with_retries(self.retries, || {
                    send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT + wait))
                })
                .await?;
            if job.state.is_final() || Instant::now() >= deadline {
                return Ok(job);
            }
        }
    }

    pub async fn list(&self, request: &ListRequest) -> Result<JobPage, ClientError> {
        self.call_with_retries(self.retries, || {
            send_and_decode(
                self.request_builder(Method::GET, "/api/v1/jobs", CALL_TIMEOUT)
                    .query(request),
            )
        })
        .await
    }

    /// Cancels a job. One that was cancelled before is no error, one that has ended
    /// otherwise is (409, with its state).
    pub async fn cancel(
        &self,
        job_id: &str,
        reason: Option<&str>,
    ) -> Result<CancelResponse, ClientError> {
        let path = job_path(job_id, "/cancel")?;
        let body = encode_json(&CancelRequest {
            reason: reason.map(str::to_owned),
        })?;
        self.call_with_retries(self.retries, || {
            send_and_decode(with_json_body(
                self.request_builder(Method::POST, &path, CALL_TIMEOUT),
                body.clone(),
            ))
        })
        .await
    }

    /// What a job waits for, and since when.
    pub async fn explain(&self, job_id: &str) -> Result<Explanation, ClientError> {
        let path = job_path(job_id, "/explain")?;
        self.call_with_retries(self.retries, || {
            send_and_decode(self.request_builder(Method::GET, &path, CALL_TIMEOUT))
        })
        .await
    }

    pub(crate) fn request_builder(
        &self,
        method: Method,
        path: &str,
        timeout: Duration,
    ) -> RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.base))
            .headers(self.headers.clone())
            .timeout(timeout)
    }

    fn new_key_if_missing(&self, request: &SubmitRequest) -> Option<String> {
        (self.retries > 0 && request.idempotency_key.is_none()).then(new_idempotency_key)
    }

    pub(crate) async fn call_with_retries<T, F>(
        &self,
        retries: usize,
        call: impl FnMut() -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let pauses = ExponentialBuilder::default()
            .with_min_delay(MIN_RETRY_PAUSE)
            .with_max_delay(MAX_RETRY_PAUSE)
            .with_max_times(retries)
            .with_jitter();
        call.retry(pauses).when(ClientError::is_retryable).await
    }
}

fn new_idempotency_key() -> String {
    format!("auto-{}", Uuid::now_v7().as_simple())
}

fn with_idempotency_key(call: RequestBuilder, key: Option<&str>) -> RequestBuilder {
    match key {
        Some(key) => call.header("idempotency-key", key),
        None => call,
    }
}

pub(crate) fn with_json_body(call: RequestBuilder, body: Vec<u8>) -> RequestBuilder {
    call.header(CONTENT_TYPE, "application/json").body(body)
}

pub(crate) fn encode_json(value: &impl Serialize) -> Result<Vec<u8>, ClientError> {
    serde_json::to_vec(value).map_err(|e| ClientError::Config(format!("cannot be JSON: {e}")))
}

/// The path of a job. Ids may hold any visible character, so they are escaped.
fn job_path(job_id: &str, rest: &str) -> Result<String, ClientError> {
    if job_id.is_empty() {
        return Err(ClientError::Config("a job's id is needed".to_owned()));
    }
    Ok(format!(
        "/api/v1/jobs/{}{rest}",
        escape_path_segment(job_id)
    ))
}

/// As one piece of a path, whatever is in it.
pub(crate) fn escape_path_segment(piece: &str) -> String {
    let mut path = String::with_capacity(piece.len());
    for byte in piece.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

pub(crate) async fn send_and_decode<T: DeserializeOwned>(
    call: RequestBuilder,
) -> Result<T, ClientError> {
    let (status, body) = send(call).await?;
    serde_json::from_slice(&body).map_err(|e| ClientError::Unexpected {
        status,
        detail: e.to_string(),
    })
}

/// The body as it is, for what is not JSON.
pub(crate) async fn send_and_read(call: RequestBuilder) -> Result<Vec<u8>, ClientError> {
    Ok(send(call).await?.1)
}

/// The status and the body of an answer that is no problem.
async fn send(call: RequestBuilder) -> Result<(u16, Vec<u8>), ClientError> {
    let response = call.send().await.map_err(ClientError::Transport)?;
    let status = response.status();
    let body = response.bytes().await.map_err(ClientError::Transport)?;
    if status.is_success() {
        return Ok((status.as_u16(), body.into()));
    }
    match serde_json::from_slice::<Problem>(&body) {
        Ok(problem) if problem.status == status.as_u16() => {
            Err(ClientError::Problem(Box::new(problem)))
        }
        Ok(_) | Err(_) => {
            let text = String::from_utf8_lossy(&body);
            Err(ClientError::Unexpected {
                status: status.as_u16(),
                detail: text.chars().take(200).collect(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_never_shown() {
        let client = Client::new("http://127.0.0.1:1/", "hush-hush").unwrap();
        assert_eq!(format!("{client:?}"), "Client(http://127.0.0.1:1)");
        assert!(!format!("{:?}", client.headers).contains("hush"));
        assert!(Client::new("127.0.0.1:1", "k").is_err());
        assert!(Client::new("http://x", "bad\nkey").is_err());
    }

    #[test]
    fn ids_cannot_leave_their_place_in_the_path() {
        assert_eq!(job_path("a-1", "").unwrap(), "/api/v1/jobs/a-1");
        assert_eq!(
            job_path("a/../b?c", "/cancel").unwrap(),
            "/api/v1/jobs/a%2F%2E%2E%2Fb%3Fc/cancel"
        );
        assert!(job_path("", "").is_err());
    }

    #[tokio::test]
    async fn nobody_there_is_a_retryable_error_and_surely_nothing_was_done() {
        let client = Client::new("http://127.0.0.1:9", "k")
            .unwrap()
            .with_retries(0);
        let error = client.get("x").await.unwrap_err();
        assert!(error.is_retryable() && !error.is_ambiguous(), "{error}");
    }
}
