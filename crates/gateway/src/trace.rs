//! The trace a job hangs from.
//!
//! Every job has a trace id. A span stands behind it only when a collector is
//! configured, or at debug level: spans cost more than the rest of a submission.

use airlock_proto::trace;
use axum::http::HeaderMap;
use tracing::Span;

/// Whether spans go anywhere.
#[derive(Debug, Clone, Copy)]
pub struct Tracing {
    pub exported: bool,
}

/// A submission's place in its trace. The span ends when this is dropped.
#[derive(Debug)]
pub struct JobTrace {
    /// Held for its end, which is the end of the submission.
    _span: Span,
    pub traceparent: String,
    pub trace_id: String,
}

/// The caller's `traceparent`, if it is one.
pub fn incoming_traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(trace::HEADER)?.to_str().ok()?;
    trace::trace_id(text).map(|_| text)
}

/// A trace id for an answer that belongs to no job.
pub fn new_trace_id() -> String {
    let fresh = trace::new_traceparent();
    trace::trace_id(&fresh).unwrap_or_default().to_owned()
}

impl Tracing {
    /// Begins the span of one submission.
    pub fn begin_job_trace(self, incoming: Option<&str>) -> JobTrace {
        let span = if self.exported {
            tracing::info_span!("http.submit")
        } else {
            tracing::debug_span!("http.submit")
        };
        if let Some(parent) = incoming {
            trace::set_remote_parent(&span, parent);
        }
        let traceparent = trace::traceparent_of_span(&span)
            .or_else(|| incoming.map(str::to_owned))
            .unwrap_or_else(trace::new_traceparent);
        let trace_id = trace::trace_id(&traceparent).unwrap_or_default().to_owned();
        JobTrace {
            _span: span,
            traceparent,
            trace_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_trace_is_kept_and_nonsense_is_not() {
        let mut headers = HeaderMap::new();
        let parent = format!("00-{}-{}-01", "ab".repeat(16), "cd".repeat(8));
        headers.insert(trace::HEADER, parent.parse().unwrap());
        let tracing = Tracing { exported: false };
        assert_eq!(
            tracing
                .begin_job_trace(incoming_traceparent(&headers))
                .trace_id,
            "ab".repeat(16)
        );
        headers.insert(trace::HEADER, "nonsense".parse().unwrap());
        assert_eq!(
            tracing
                .begin_job_trace(incoming_traceparent(&headers))
                .trace_id
                .len(),
            32
        );
    }
}
