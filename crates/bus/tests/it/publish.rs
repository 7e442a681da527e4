//! Publishing, and core NATS.

use std::time::Duration;

use airlock_bus::{Bus, BusConfig, BusError, Incoming, Outgoing, SecretUrl, StreamName, subjects};
use airlock_model::ids::{Epoch, Shard};
use airlock_testkit::{Nats, Seen, eventually};
use tokio::time::timeout;

use crate::{BOUND, ack, config, connect, message, publish, take, texts};

#[tokio::test]
async fn many_messages_arrive_in_order_with_all_they_carry() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let messages = (0..2_500)
        .map(|i| Outgoing {
            subject: subjects::JOB_SUBMIT.to_owned(),
            payload: i.to_string().into(),
            msg_id: Some(format!("id-{i}")),
            traceparent: Some(trace.to_owned()),
        })
        .collect();
    let results = bus.publish_all(messages).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");

    let mut consumer = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_SUBMIT,
            "t",
            Shard(0),
            Epoch(1),
        )
        .await?;
    let got = take(&mut consumer, 2_500).await?;
    let expected: Vec<_> = (0..2_500).map(|i| i.to_string()).collect();
    assert_eq!(texts(&got), expected);
    for (i, delivery) in got.iter().enumerate() {
        assert_eq!(delivery.stream_seq, i as u64 + 1);
        assert_eq!(delivery.subject(), subjects::JOB_SUBMIT);
        assert_eq!(delivery.traceparent.as_deref(), Some(trace));
        assert_eq!(delivery.deliveries, 1);
    }
    let key = got[0].key();
    assert_eq!(
        (&*key.stream, &*key.consumer, key.seq),
        ("CORDUM_SYS", "t-s0", 1)
    );
    assert_eq!(key.published_at, got[0].published_at);
    ack(&consumer, got).await
}

#[tokio::test]
async fn one_message_of_each_id_is_kept() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    for text in ["first", "again"] {
        let mut message = message(subjects::JOB_RESULT, text);
        message.msg_id = Some("same".to_owned());
        bus.publish(message).await?;
    }
    publish(&bus, subjects::JOB_RESULT, &["other"]).await?;
    let mut consumer = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_RESULT,
            "t",
            Shard(0),
            Epoch(1),
        )
        .await?;
    assert_eq!(texts(&take(&mut consumer, 2).await?), ["first", "other"]);
    Ok(())
}

#[tokio::test]
async fn one_bad_message_fails_alone() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let mut huge = message(subjects::JOB_SUBMIT, "");
    huge.payload = vec![0; bus.max_payload() + 1].into();
    let results = bus
        .publish_all(vec![
            message(subjects::JOB_SUBMIT, "good"),
            message("worker..jobs", "no such subject"),
            huge,
            message("nobody.keeps.this", "no stream"),
            message(subjects::JOB_SUBMIT, "good too"),
        ])
        .await;
    let ok: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, false, false, true], "{results:?}");
    let certain = |r: &Result<(), airlock_bus::PublishError>| {
        r.as_ref().err().is_none_or(|e| !e.is_ambiguous())
    };
    assert!(results.iter().all(certain), "{results:?}");
    assert_eq!(bus.counters().snapshot().publishes_failed, 3);
    Ok(())
}

#[tokio::test]
async fn a_deleted_stream_is_made_again() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let bus = connect(&nats).await?;
    let mut lost = bus.stream_lost();
    lost.borrow_and_update();
    publish(&bus, subjects::JOB_SUBMIT, &["gone"]).await?;
    let mut consumer = bus
        .take_over_consumer(
            StreamName::Sys,
            subjects::JOB_SUBMIT,
            "t",
            Shard(0),
            Epoch(1),
        )
        .await?;
    assert_eq!(texts(&take(&mut consumer, 1).await?), ["gone"]);

    let raw = async_nats::connect(nats.url()).await?;
    async_nats::jetstream::new(raw)
        .delete_stream("CORDUM_SYS")
        .await?;
    eventually(BOUND, "a publish that works again", || async {
        publish(&bus, subjects::JOB_SUBMIT, &["new"]).await?;
        Ok(Seen::Done(()))
    })
    .await?;
    timeout(BOUND, lost.changed()).await??;
    let got = take(&mut consumer, 1).await?;
    assert_eq!(
        (texts(&got), got[0].stream_seq),
        (vec!["new".to_owned()], 1)
    );
    Ok(())
}

#[tokio::test]
async fn core_messages_reach_who_listens_and_one_of_a_group() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let (sender, receiver) = (connect(&nats).await?, connect(&nats).await?);
    let mut all = receiver.subscribe("sys.>", None).await?;
    let mut one = receiver
        .subscribe(subjects::HEARTBEAT, Some("group"))
        .await?;
    let mut other = receiver
        .subscribe(subjects::HEARTBEAT, Some("group"))
        .await?;
    for i in 0..10 {
        sender
            .send(subjects::HEARTBEAT, i.to_string().into(), Some("trace"))
            .await?;
    }
    sender
        .send_with_reply(subjects::ALERT, "answers", "end".into())
        .await?;
    sender.flush().await?;

    let mut got = Vec::new();
    while got.len() < 11 {
        let n = timeout(BOUND, all.recv_many(&mut got, 4)).await?;
        assert!((1..=4).contains(&n), "{n} at once");
    }
    let Incoming {
        subject,
        reply,
        traceparent,
        ..
    } = &got[10];
    assert_eq!(
        (subject.as_str(), reply.as_deref()),
        (subjects::ALERT, Some("answers"))
    );
    assert_eq!(
        (traceparent, &got[0].traceparent),
        (&None, &Some("trace".to_owned()))
    );
    let mut of_group = 0;
    while of_group < 10 {
        tokio::select! {
            message = one.recv() => assert!(message.is_some()),
            message = other.recv() => assert!(message.is_some()),
            () = tokio::time::sleep(BOUND) => panic!("only {of_group} came"),
        }
        of_group += 1;
    }
    Ok(())
}

#[tokio::test]
async fn another_prefix_means_other_streams() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let other = BusConfig {
        stream_prefix: "AIRLOCK".to_owned(),
        ..config(&nats)
    };
    let bus = Bus::connect(&other, "test").await?;
    assert_eq!(*bus.stream_lost().borrow(), 2, "both streams were new");
    let raw = async_nats::connect(nats.url()).await?;
    let js = async_nats::jetstream::new(raw);
    assert!(js.get_stream("AIRLOCK_SYS").await.is_ok());
    assert!(js.get_stream("AIRLOCK_JOBS").await.is_ok());
    assert!(js.get_stream("CORDUM_SYS").await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_stream_that_somebody_made_for_less_is_completed() -> anyhow::Result<()> {
    let nats = Nats::start().await?;
    let raw = async_nats::connect(nats.url()).await?;
    let js = async_nats::jetstream::new(raw);
    js.create_stream(async_nats::jetstream::stream::Config {
        name: "CORDUM_SYS".to_owned(),
        subjects: vec![subjects::JOB_SUBMIT.to_owned(), "theirs".to_owned()],
        ..Default::default()
    })
    .await?;
    let bus = connect(&nats).await?;
    publish(&bus, subjects::JOB_EVENT, &["kept"]).await?;
    publish(&bus, "theirs", &["kept too"]).await
}

#[tokio::test]
async fn connecting_to_nobody_gives_up_in_time_and_hides_the_password() -> anyhow::Result<()> {
    let config = BusConfig {
        url: SecretUrl::new("nats://me:hush@127.0.0.1:1"),
        connect_timeout: Duration::from_millis(300),
        ..BusConfig::default()
    };
    let error = timeout(BOUND, Bus::connect(&config, "test"))
        .await?
        .expect_err("nobody is there");
    assert!(matches!(error, BusError::Connect { .. }), "{error}");
    assert!(error.is_retryable() && !format!("{error} {error:?}").contains("hush"));
    Ok(())
}
