use airlock_model::Priority;
use airlock_model::job::ActorType;

use super::*;

#[test]
fn a_clients_trace_goes_on() {
    let theirs = "4bf92f3577b34da6a3ce929d0e0e4736";
    let t = to_traceparent(theirs);
    assert_eq!(trace::trace_id(&t), Some(theirs));
    for other in ["", "trace-1", &"0".repeat(32), &"é".repeat(16)] {
        let t = to_traceparent(other);
        assert!(trace::trace_id(&t).is_some_and(|id| id != other), "{t}");
    }
}

#[test]
fn a_packet_becomes_what_rest_would_have_made_of_it() {
    let r = cap::JobRequest {
        topic: "job.a".into(),
        labels: [("k".to_owned(), "v".to_owned())].into(),
        budget: Some(cap::Budget {
            deadline_ms: 5,
            ..cap::Budget::default()
        }),
        meta: Some(cap::JobMetadata {
            labels: [
                ("k".to_owned(), "other".to_owned()),
                ("m".to_owned(), "1".to_owned()),
            ]
            .into(),
            actor_type: 2,
            ..cap::JobMetadata::default()
        }),
        ..cap::JobRequest::default()
    };
    let s = parse_job_spec(&r).unwrap();
    assert_eq!(s.priority, Priority::Interactive);
    assert_eq!(s.labels["k"], "v", "the job's own label wins");
    assert_eq!(s.labels["m"], "1");
    assert_eq!(s.budget.and_then(|b| b.deadline_ms), Some(5));
    assert_eq!(s.budget.and_then(|b| b.max_total_tokens), None);
    assert_eq!(s.actor_type, Some(ActorType::Service));
    assert_eq!(s.workflow_id, None);
    assert_eq!(
        parse_tenant(&cap::BusPacket::default(), &r)
            .unwrap()
            .as_str(),
        "default"
    );
}

#[test]
fn an_input_is_there_small_enough_and_json() {
    let key = |id: &str| keys::context_key(&JobId::new(id).unwrap());
    let contents = HashMap::from([
        (key("a"), Bytes::from_static(b"{\"n\": 1}")),
        (key("b"), Bytes::from_static(b"words")),
    ]);
    let read = |id: &str, limit| validate_staged_input("context_ptr", &key(id), &contents, limit);
    assert_eq!(&read("a", 8).unwrap()[..], b"{\"n\": 1}");
    for (id, limit, why) in [
        ("a", 7, "at most 7"),
        ("b", 8, "not JSON"),
        ("c", 8, "nothing at redis://ctx:c"),
    ] {
        let said = read(id, limit).unwrap_err().to_string();
        assert!(
            said.starts_with("context_ptr") && said.contains(why),
            "{said}"
        );
    }
    assert_eq!(parse_context_key("f", "").unwrap(), None);
    assert_eq!(
        parse_context_key("f", "redis://ctx:a").unwrap(),
        Some(key("a"))
    );
    for other in [
        key("a").as_str(),
        "redis://",
        "redis://res:a",
        "redis://cordum:x",
        "s3://ctx:a",
    ] {
        assert!(parse_context_key("f", other).is_err(), "{other}");
    }
}

#[test]
fn a_compensation_comes_along() {
    let c = cap::Compensation {
        topic: "job.undo".into(),
        labels: [("k".to_owned(), "v".to_owned())].into(),
        meta: Some(cap::JobMetadata {
            capability: "undo".into(),
            ..cap::JobMetadata::default()
        }),
        ..cap::Compensation::default()
    };
    let undo = parse_compensation(&c).unwrap();
    assert_eq!(undo.topic.as_str(), "job.undo");
    assert_eq!(undo.capability.as_deref(), Some("undo"));
    assert_eq!(undo.labels["k"], "v");
    assert!(parse_compensation(&cap::Compensation::default()).is_err());
}

#[test]
fn limits_hold_here_too() {
    let with = |key: String| cap::JobRequest {
        meta: Some(cap::JobMetadata {
            idempotency_key: key,
            ..cap::JobMetadata::default()
        }),
        ..cap::JobRequest::default()
    };
    assert_eq!(parse_idempotency_key(&with(String::new())).unwrap(), None);
    assert!(parse_idempotency_key(&with("a".repeat(257))).is_err());
    assert!(parse_idempotency_key(&with("a\0b".into())).is_err());
    assert_eq!(
        parse_idempotency_key(&with("a".into())).unwrap().as_deref(),
        Some("a")
    );
}

/// Such a packet is refused for good, and so dead-lettered.
#[test]
fn a_job_on_the_bus_is_bounded_as_a_whole() {
    let many = |bytes: usize| {
        (0..64)
            .map(|i| (format!("label{i}"), "x".repeat(bytes)))
            .collect()
    };
    let with = |labels, env| cap::JobRequest {
        topic: "job.a".into(),
        labels: many(labels),
        env: many(env),
        ..cap::JobRequest::default()
    };
    assert!(parse_job_spec(&with(500, 400)).unwrap().validate().is_ok());
    let wrong = parse_job_spec(&with(700, 600))
        .unwrap()
        .validate()
        .unwrap_err();
    assert_eq!(wrong.field, "labels");
}

#[test]
fn only_a_signature_proves_a_sender() {
    assert_eq!(
        to_submitted_principal("ann", Proof::Signature),
        "signed:ann"
    );
    assert_eq!(to_submitted_principal("ann", Proof::None), "bus:ann");
    // A sender that calls itself so proves nothing by it.
    assert_eq!(
        to_submitted_principal("signed:ann", Proof::None),
        "bus:signed:ann"
    );
}
