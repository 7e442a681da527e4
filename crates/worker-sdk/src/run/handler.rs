//! Typed functions as handlers of topics.
//!
//! A handler takes the context and its input and gives its output; both travel as JSON.
//! What must stay true: whatever a handler does, its job gets a result. An input that
//! does not fit is a fatal failure (it will not fit the next time), a panic a plain one.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use crate::error::JobError;
use crate::metrics::TopicMetrics;
use crate::run::context::JobContext;
use crate::run::options::HandlerOptions;

/// The input of a job that has none.
pub(crate) const NO_INPUT: Bytes = Bytes::from_static(b"null");

pub(crate) type HandlerResult = Result<Bytes, JobError>;

/// A handler without its types.
pub(crate) type Handler =
    Arc<dyn Fn(JobContext, Bytes) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

/// A handler with its limits and its metrics.
pub(crate) struct RegisteredHandler {
    pub handler: Handler,
    /// Its own slots, when it has fewer than the worker.
    pub slots: Option<Semaphore>,
    pub timeout: Option<Duration>,
    pub metrics: Arc<TopicMetrics>,
}

impl RegisteredHandler {
    pub fn new(topic: &str, handler: Handler, options: &HandlerOptions) -> Self {
        Self {
            handler,
            slots: options.max_parallel.map(Semaphore::new),
            timeout: options.timeout,
            metrics: TopicMetrics::new(topic),
        }
    }
}

impl std::fmt::Debug for RegisteredHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegisteredHandler").finish_non_exhaustive()
    }
}

/// By topic, in order, so that handshakes always list them in the same order.
pub(crate) type Handlers = BTreeMap<String, Arc<RegisteredHandler>>;

pub(crate) fn erase_handler_types<F, Fut, In, Out>(function: F) -> Handler
where
    F: Fn(JobContext, In) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Out, JobError>> + Send + 'static,
    In: DeserializeOwned + Send + 'static,
    Out: Serialize + 'static,
{
    let function = Arc::new(function);
    Arc::new(move |ctx, input| {
        let function = Arc::clone(&function);
        async move {
            let input = serde_json::from_slice(&input)
                .map_err(|e| JobError::fatal("invalid_input", format!("the input: {e}")))?;
            let output = function(ctx, input).await?;
            match serde_json::to_vec(&output) {
                Ok(json) => Ok(Bytes::from(json)),
                Err(e) => Err(JobError::fatal(
                    "invalid_output",
                    format!("the output: {e}"),
                )),
            }
        }
        .boxed()
    })
}

/// Runs a handler; a panic is a failure like any other.
pub(crate) async fn call_handler(
    handler: &Handler,
    ctx: JobContext,
    input: Bytes,
) -> HandlerResult {
    match AssertUnwindSafe(handler(ctx, input)).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => Err(JobError::failed(format!(
            "the handler panicked: {}",
            panic_message(panic.as_ref())
        ))
        .with_code("panic")),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}
