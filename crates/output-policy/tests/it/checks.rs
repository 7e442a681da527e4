//! Verdicts over gRPC, and what is refused.

use std::time::Duration;

use airlock_kernel_client::KernelError;
use airlock_model::output::ClosedRules;
use airlock_proto::own::output_batch_client::OutputBatchClient;
use airlock_proto::{cap, own};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::running::{RULES, Running, address, output};

#[tokio::test]
async fn each_decision_comes_with_what_it_needs() -> anyhow::Result<()> {
    let r = Running::start(RULES).await?;
    let text = format!("{{\"to\":\"{}\",\"n\":1.50}}", address());

    let allowed = r.check(output("job.open", text.as_bytes())).await;
    assert_eq!(allowed.decision(), cap::OutputDecision::Allow);
    assert_eq!(allowed.rule_id, "open-topic");
    assert!(allowed.findings.is_empty() && allowed.redacted_content.is_none());
    assert!(allowed.policy_snapshot.starts_with("sha256:"));

    let masked = r.check(output("job.mail", text.as_bytes())).await;
    assert_eq!(masked.decision(), cap::OutputDecision::Redact);
    assert_eq!(
        masked.redacted_content.as_deref(),
        Some(&b"{\"to\":\"[REDACTED:pii]\",\"n\":1.50}"[..])
    );
    let finding = &masked.findings[0];
    assert_eq!(
        (finding.r#type.as_str(), finding.scanner.as_str()),
        ("pii", "email")
    );
    assert_eq!(finding.pointer, "/to");
    let (at, len) = (finding.offset as usize, finding.length as usize);
    assert_eq!(&text[at..at + len], address());
    assert!(!finding.detail.contains("roe"), "{}", finding.detail);

    let held = r.check(output("job.pay", text.as_bytes())).await;
    assert_eq!(held.decision(), cap::OutputDecision::Quarantine);
    assert!(!held.deny);
    assert_eq!(
        (held.rule_id.as_str(), held.severity.as_str()),
        ("pay", "high")
    );
    assert!(
        held.redacted_content.is_some(),
        "for whoever releases it masked"
    );

    // In a key it cannot be masked: no copy, and the caller quarantines.
    let key = format!("{{\"{}\":1}}", address());
    let stuck = r.check(output("job.mail", key)).await;
    assert_eq!(stuck.decision(), cap::OutputDecision::Redact);
    assert!(stuck.redacted_content.is_none());
    assert!(
        stuck.reason.contains("cannot be masked"),
        "{}",
        stuck.reason
    );

    let clean = r.check(output("job.mail", "{\"a\":1}")).await;
    assert_eq!(clean.decision(), cap::OutputDecision::Allow);
    assert_eq!(clean.rule_id, "");
    Ok(())
}

#[tokio::test]
async fn metadata_decides_or_says_that_the_content_is_needed() -> anyhow::Result<()> {
    let r = Running::start(RULES).await?;
    let ask = async |topic: &str, size: i64| {
        let request = cap::OutputCheckRequest {
            output_size_bytes: size,
            phase: own::OutputPhase::Metadata.into(),
            ..output(topic, Vec::new())
        };
        r.check(request).await
    };
    let denied = ask("job.mail", 20_000_001).await;
    assert_eq!(denied.decision(), cap::OutputDecision::Quarantine);
    assert!(denied.deny && !denied.content_needed);
    assert_eq!(denied.reason, "denied by rule \"big\": too large");
    let open = ask("job.mail", 10).await;
    assert!(open.content_needed && !open.closed, "{open:?}");
    let closed = ask("job.pay", 10).await;
    assert!(closed.content_needed && closed.closed, "{closed:?}");
    let decided = ask("job.open", 10).await;
    assert!(!decided.content_needed, "{decided:?}");

    let confirmed = r.client.confirm().await?;
    assert_eq!(confirmed.snapshot, decided.policy_snapshot);
    assert_eq!(confirmed.fail_mode(), own::FailMode::Open);
    assert_eq!(confirmed.refused, "");
    let ClosedRules(closed) = serde_json::from_str(&confirmed.closed_rules)?;
    assert_eq!(closed.len(), 1);
    assert_eq!(closed[0].id, "pay");
    assert_eq!(closed[0].topics, ["job.pay"]);
    Ok(())
}

#[tokio::test]
async fn the_operators_fail_mode_stands_over_the_files() -> anyhow::Result<()> {
    let env = [("OUTPUT_POLICY_FAIL_MODE", "closed")];
    let r = Running::start_with(RULES, None, &env).await?;
    let confirmed = r.client.confirm().await?;
    assert_eq!(confirmed.fail_mode(), own::FailMode::Closed);
    let ClosedRules(closed) = serde_json::from_str(&confirmed.closed_rules)?;
    let ids: Vec<&str> = closed.iter().map(|r| r.id.as_str()).collect();
    assert_eq!(ids, ["big", "pay", "mask"]);
    Ok(())
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_bounded() -> anyhow::Result<()> {
    let r = Running::start(RULES).await?;
    let text = address();
    let requests: Vec<_> = (0..1_000)
        .map(|i| match i % 3 {
            0 => output("job.open", "{}"),
            1 => output("job.mail", text.as_bytes()),
            _ => output("job.pay", text.as_bytes()),
        })
        .collect();
    // Twice as many as one call takes: the client makes two calls.
    let twice: Vec<_> = requests.iter().cloned().chain(requests.clone()).collect();
    let responses = r.client.check_batch(twice).await?;
    assert_eq!(responses.len(), 2_000);
    for (i, response) in responses.iter().enumerate() {
        let rule = ["open-topic", "mask", "pay"][(i % 1_000) % 3];
        assert_eq!(response.rule_id, rule, "{i}");
    }
    let mut raw = OutputBatchClient::new(r.channel()?);
    let mut many = requests;
    many.push(output("job.open", "{}"));
    let request = own::CheckOutputBatchRequest { requests: many };
    let refused = raw.check_batch(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("1001 requests"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn what_is_over_a_limit_is_never_clean() -> anyhow::Result<()> {
    let r = Running::start(RULES).await?;
    // More than is scanned of one output.
    let long = r.check(output("job.pay", vec![b' '; (8 << 20) + 1])).await;
    assert_eq!(long.decision(), cap::OutputDecision::Quarantine);
    assert_eq!(long.rule_id, "pay");
    assert!(
        long.findings.iter().any(|f| f.scanner == "limit"),
        "{long:?}"
    );
    // A part of an output.
    let part = cap::OutputCheckRequest {
        output_size_bytes: 1_000,
        ..output("job.pay", "{}")
    };
    let part = r.check(part).await;
    assert_eq!(part.rule_id, "pay");
    // More than one message may have.
    let huge = output("job.pay", vec![b' '; 33 << 20]);
    let error = r.client.check_batch(vec![huge]).await.unwrap_err();
    assert!(
        matches!(
            error,
            KernelError::Rejected {
                code: Code::OutOfRange,
                ..
            }
        ),
        "{error:?}"
    );
    // Depth is bounded too, and one of these does not end the process.
    let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    let deep = r.check(output("job.pay", deep)).await;
    assert_eq!(deep.decision(), cap::OutputDecision::Quarantine);
    assert!(r.process.is_running());
    Ok(())
}

#[tokio::test]
async fn garbage_harms_nobody() -> anyhow::Result<()> {
    let r = Running::start(RULES).await?;
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x00\xff\xfe garbage",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut stream = tokio::net::TcpStream::connect(r.grpc.addr()).await?;
        stream.write_all(bytes).await?;
        let mut answer = Vec::new();
        // Whatever it says to that, it hangs up.
        let read = stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(Duration::from_secs(60), read).await?;
    }
    let strange = cap::OutputCheckRequest {
        output_size_bytes: i64::MIN,
        execution_ms: i64::MIN,
        phase: 77,
        risk_tags: vec![String::new(); 300],
        ..output("", b"\xff\xfe\x00".to_vec())
    };
    let verdict = r.check(strange).await;
    assert_eq!(verdict.decision(), cap::OutputDecision::Quarantine);
    assert!(
        verdict.reason.contains("300 risk tags"),
        "{}",
        verdict.reason
    );
    let clean = r.check(output("job.mail", b"\xff\xfe\x00".to_vec())).await;
    assert_eq!(clean.decision(), cap::OutputDecision::Allow);
    let mut health = HealthClient::new(r.channel()?);
    let request = HealthCheckRequest {
        service: "cordum.agent.v1.OutputPolicyService".to_owned(),
    };
    let serving = health.check(request).await?.into_inner().status();
    assert_eq!(serving, ServingStatus::Serving);
    Ok(())
}
