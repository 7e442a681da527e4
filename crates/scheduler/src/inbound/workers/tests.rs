use super::*;

const NOW: Timestamp = Timestamp(1_000_000_000);

fn shared() -> SharedWorkers {
    SharedWorkers {
        ids: BTreeSet::from(["cap-runtime".to_owned()]),
        signs: Mutex::default(),
    }
}

fn register(shared: &SharedWorkers, id: &str) -> Option<Worker> {
    let h = cap::Handshake {
        component_id: id.into(),
        role: cap::ComponentRole::Worker.into(),
        ready_topics: vec!["job.a".into()],
        ..cap::Handshake::default()
    };
    match handshake_to_input(shared, h, NOW)? {
        Input::Register(worker) => Some(*worker),
        other => panic!("{other:?}"),
    }
}

fn report_load(shared: &SharedWorkers, id: &str, slots: i32, active: i32) -> Heartbeat {
    let h = cap::Heartbeat {
        worker_id: id.into(),
        max_parallel_jobs: slots,
        active_jobs: active,
        ..cap::Heartbeat::default()
    };
    match heartbeat_to_input(shared, h, NOW) {
        Some(Input::Heartbeat(beat)) => beat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_worker_of_another_sdk_is_known_by_its_handshake() {
    let w = register(&shared(), "py-1").unwrap();
    assert!(!w.sdk && !w.inline);
    assert_eq!((w.pool.clone(), w.max_parallel), (None, 1));
    assert_eq!(w.topics, BTreeSet::from(["job.a".to_owned()]));
    assert_eq!(w.addressing, Addressing::Direct);
    assert_eq!(w.incarnation.addressing(), Addressing::Direct);
    // An id that makes no subject could never be given anything.
    assert!(register(&shared(), "py..1").is_none());
    let gateway = cap::Handshake {
        component_id: "gateway".into(),
        role: cap::ComponentRole::Gateway.into(),
        ..cap::Handshake::default()
    };
    assert!(handshake_to_input(&shared(), gateway, NOW).is_none());
}

#[test]
fn those_under_one_id_are_one_worker_with_the_room_of_all() {
    let shared = shared();
    assert_eq!(register(&shared, "cap-runtime").unwrap().max_parallel, 1);
    let w = register(&shared, "cap-runtime").unwrap();
    assert_eq!((w.max_parallel, w.addressing), (2, Addressing::Shared));
    assert_eq!(w.incarnation.addressing(), Addressing::Shared);
    report_load(&shared, "cap-runtime", 3, 1);
    let b = report_load(&shared, "cap-runtime", 3, 2);
    assert_eq!((b.max_parallel, b.active_jobs), (6, 3));
    assert_eq!(b.addressing, Addressing::Shared);
    let alone = report_load(&shared, "py-1", 3, 2);
    assert_eq!((alone.max_parallel, alone.active_jobs), (3, 2));
    assert_eq!(alone.addressing, Addressing::Direct);
}

#[test]
fn progress_is_its_senders_and_of_the_run_it_names() {
    let envelope = cap::BusPacket {
        sender_id: "py-1".into(),
        trace_id: "the-run".into(),
        ..cap::BusPacket::default()
    };
    let p = cap::JobProgress {
        job_id: "j".into(),
        ..cap::JobProgress::default()
    };
    let sent_by = |p| match progress_to_input(&envelope, p) {
        Some(Input::Started {
            worker, dispatch, ..
        }) => (worker.to_string(), dispatch),
        other => panic!("{other:?}"),
    };
    let by_trace = ("py-1".to_owned(), "the-run".to_owned());
    assert_eq!(sent_by(p.clone()), by_trace);
    // Naming another worker does not make it that worker's progress.
    let forged = cap::JobProgress {
        dispatch: Some(cap::DispatchIdentity {
            dispatch_id: "d".into(),
            attempt: 1,
            assigned_worker_id: "py-2".into(),
        }),
        ..p
    };
    assert_eq!(sent_by(forged), ("py-1".to_owned(), "d".to_owned()));
}
