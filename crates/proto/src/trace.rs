//! W3C trace context, the same string on every hop: an HTTP header, a NATS header, gRPC
//! metadata, a ledger column.
//!
//! A job has a trace id from the moment it is accepted, whether or not anything
//! collects traces; spans hang below it only when a collector is configured.

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use uuid::Uuid;

/// The header's name, in HTTP, NATS and gRPC alike.
pub const HEADER: &str = "traceparent";

/// The trace id inside a `traceparent`, or `None` when it is not one.
pub fn trace_id(traceparent: &str) -> Option<&str> {
    parse_traceparent(traceparent).map(|_| &traceparent[3..35])
}

/// A fresh root, for when nobody upstream has begun a trace. Not sampled: there is no
/// span behind it.
pub fn new_traceparent() -> String {
    let trace = Uuid::new_v4().as_simple().to_string();
    let span = Uuid::new_v4().as_simple().to_string();
    format!("00-{trace}-{}-00", &span[..16])
}

/// Makes `span` a child of the remote span in `traceparent`.
pub fn set_remote_parent(span: &Span, traceparent: &str) {
    if let Some(context) = parse_traceparent(traceparent) {
        let parent = opentelemetry::Context::new().with_remote_span_context(context);
        // It fails only when no collector is configured, and then there is no span.
        let _ = span.set_parent(parent);
    }
}

/// What the next hop should follow: `span` itself when it is being recorded.
pub fn traceparent_of_span(span: &Span) -> Option<String> {
    let context = span.context();
    let span = context.span();
    let sc = span.span_context();
    sc.is_valid().then(|| {
        format!(
            "00-{}-{}-{:02x}",
            sc.trace_id(),
            sc.span_id(),
            sc.trace_flags().to_u8()
        )
    })
}

fn parse_traceparent(s: &str) -> Option<SpanContext> {
    if !s.is_ascii() {
        return None;
    }
    let mut parts = s.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version != "00" || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_one_parses() {
        let t = new_traceparent();
        assert_eq!(trace_id(&t).map(str::len), Some(32));
        assert_ne!(new_traceparent(), t);
    }

    #[test]
    fn nonsense_is_not_a_trace() {
        for bad in [
            "",
            "00",
            "zz-zz-zz-zz",
            "00-0-0-00",
            &format!("00-{}-{}-00", "0".repeat(32), "0".repeat(16)),
        ] {
            assert_eq!(trace_id(bad), None, "{bad}");
        }
    }
}
