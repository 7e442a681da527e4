//! What only etcd can do to an election.

use airlock_election::{Backend, EtcdConfig};
use airlock_model::Epoch;
use airlock_settings::Secret;
use airlock_testkit::{Etcd, Proxy, Seen, eventually};
use base64::Engine;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{BOUND, SHARD, TestEnv, lost, run_campaign, won};

const KEY: &str = "/ccm/scheduler/leader";

fn encoded(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

pub async fn delete_key(etcd: &Etcd) -> anyhow::Result<()> {
    let request = json!({"key": encoded(KEY)}).to_string();
    let answer = etcd.api("/v3/kv/deleterange", &request).await?;
    anyhow::ensure!(answer.contains("\"deleted\""), "{answer}");
    Ok(())
}

/// The key as it is: its value, and its lease.
async fn read_key(etcd: &Etcd) -> anyhow::Result<Option<Value>> {
    let request = json!({"key": encoded(KEY)}).to_string();
    let answer: Value = serde_json::from_str(&etcd.api("/v3/kv/range", &request).await?)?;
    Ok(answer["kvs"].get(0).cloned())
}

#[tokio::test]
async fn the_key_is_the_documents_and_goes_with_the_release() -> anyhow::Result<()> {
    let defaults = EtcdConfig::default();
    assert_eq!((defaults.key.as_str(), defaults.ttl.as_secs()), (KEY, 15));
    let env = TestEnv::on_etcd().await?;
    let etcd = env.etcd()?;
    let leader = env.lead("host-1").await?;
    let kv = read_key(etcd).await?.expect("a key");
    assert_eq!(kv["value"], encoded("host-1"));
    assert_ne!(kv["lease"], Value::Null, "it goes with its lease");
    leader.release().await;
    assert_eq!(read_key(etcd).await?, None);
    Ok(())
}

/// A standby watches from a revision that is compacted away under it.
#[tokio::test]
async fn a_compaction_costs_a_standby_nothing() -> anyhow::Result<()> {
    let env = TestEnv::on_etcd().await?;
    let etcd = env.etcd()?;
    let leader = env.lead("a").await?;
    let mut standby = env.campaign("b", &CancellationToken::new());
    standby.waits().await?;
    for n in 0..3 {
        let put = json!({"key": encoded("other"), "value": encoded(&n.to_string())});
        let answer: Value = serde_json::from_str(&etcd.api("/v3/kv/put", &put.to_string()).await?)?;
        let compact = json!({"revision": answer["header"]["revision"], "physical": true});
        etcd.api("/v3/kv/compaction", &compact.to_string()).await?;
    }
    leader.release().await;
    let second = standby.won().await?;
    assert_eq!(second.epoch(), Epoch(2));
    second.release().await;
    Ok(())
}

/// Leases are etcd's to remember: a leader outlives a restart of it.
#[tokio::test]
async fn a_leader_keeps_its_lease_over_a_restart_of_etcd() -> anyhow::Result<()> {
    let mut env = TestEnv::on_etcd().await?;
    env.config.etcd.ttl = std::time::Duration::from_secs(10);
    let etcd = env.etcd()?;
    let leader = env.lead("a").await?;
    let before = read_key(etcd).await?;
    etcd.restart().await?;
    let mut standby = env.campaign("b", &CancellationToken::new());
    standby.waits().await?;
    assert_eq!(read_key(etcd).await?, before);
    assert!(!leader.lost_token().is_cancelled());
    leader.release().await;
    standby.won().await?.release().await;
    Ok(())
}

/// The leader is cut off from etcd alone. It stops by its own clock, while etcd still keeps
/// the key for it; only then does another lead.
#[tokio::test]
async fn a_leader_that_cannot_refresh_stops_before_its_lease_ends() -> anyhow::Result<()> {
    let mut env = TestEnv::on_etcd().await?;
    let link = Proxy::start(env.etcd()?.addr()).await?;
    let direct = env.config.etcd.endpoints.clone();
    env.config.etcd.endpoints = vec![link.rewrite(&direct[0])?];
    let first = env.lead("a").await?;
    env.config.etcd.endpoints = direct;
    let mut standby = env.campaign("b", &CancellationToken::new());
    standby.waits().await?;
    link.cut();
    lost(&first).await?;
    let kv = read_key(env.etcd()?)
        .await?
        .expect("the key is still there");
    assert_eq!(
        kv["value"],
        encoded("a"),
        "nobody led before the first had stopped"
    );
    let second = standby.won().await?;
    assert_eq!(second.epoch(), Epoch(2));
    second.release().await;
    Ok(())
}

/// The lease ran out while nobody renewed it, as in a machine that slept: the first thing
/// that the holder hears is that it is over.
#[tokio::test]
async fn a_lease_that_expired_in_sleep_is_lost() -> anyhow::Result<()> {
    let env = TestEnv::on_etcd().await?;
    let etcd = env.etcd()?;
    let leader = env.lead("a").await?;
    let kv = read_key(etcd).await?.expect("a key");
    let revoke = json!({"ID": kv["lease"]}).to_string();
    etcd.api("/v3/lease/revoke", &revoke).await?;
    lost(&leader).await?;
    let second = env.lead("b").await?;
    assert_eq!(second.epoch(), Epoch(2));
    second.release().await;
    Ok(())
}

#[tokio::test]
async fn endpoints_may_die_one_by_one() -> anyhow::Result<()> {
    let mut env = TestEnv::on_etcd().await?;
    let target = env.etcd()?.addr();
    let url = env.etcd()?.url();
    let doors = [
        Proxy::start(target).await?,
        Proxy::start(target).await?,
        Proxy::start(target).await?,
    ];
    env.config.etcd.endpoints = doors
        .iter()
        .map(|door| door.rewrite(&url))
        .collect::<anyhow::Result<_>>()?;
    let never = CancellationToken::new();
    let mut leader = env.lead("a").await?;
    // One refuses, the next is silent: the third is left.
    for (n, door) in doors[..2].iter().enumerate() {
        let mut standby = env.campaign(&format!("standby-{n}"), &never);
        standby.waits().await?;
        match n {
            0 => door.refuse_connections().await,
            _ => door.cut(),
        }
        leader.release().await;
        leader = standby.won().await?;
    }
    let renewed = env.ledger.ping().await?;
    eventually(BOUND, "the leader to go on", || async {
        let info = env.ledger.leader(SHARD).await?;
        let at = info.and_then(|i| i.renewed_at);
        Ok(Seen::when(at > Some(renewed), format!("{at:?}")))
    })
    .await?;
    assert!(!leader.lost_token().is_cancelled());
    leader.release().await;
    Ok(())
}

#[tokio::test]
async fn a_user_with_a_password_leads_and_a_wrong_one_is_told_so() -> anyhow::Result<()> {
    let mut env = TestEnv::on_etcd().await?;
    let etcd = env.etcd()?;
    let root = json!({"name": "root", "password": "s3cret"}).to_string();
    etcd.api("/v3/auth/user/add", &root).await?;
    etcd.api("/v3/auth/role/add", &json!({"name": "root"}).to_string())
        .await?;
    let grant = json!({"user": "root", "role": "root"}).to_string();
    etcd.api("/v3/auth/user/grant", &grant).await?;
    etcd.api("/v3/auth/enable", "{}").await?;

    assert_eq!(env.config.backend, Backend::Etcd);
    env.config.etcd.user = Some("root".to_owned());
    env.config.etcd.password = Some(Secret::new("s3cret"));
    let leader = env.lead("a").await?;
    let mut standby = env.campaign("b", &CancellationToken::new());
    standby.waits().await?;
    leader.release().await;
    standby.won().await?.release().await;

    for wrong in [Some("guess"), None] {
        env.config.etcd.user = wrong.map(|_| "root".to_owned());
        env.config.etcd.password = wrong.map(Secret::new);
        let mut elector = env.elector("c", SHARD);
        let never = CancellationToken::new();
        let tried = tokio::time::timeout(BOUND, elector.acquire_leadership(&never)).await?;
        let error = tried.expect_err("nobody knows it");
        assert!(error.source.is_fatal(), "{error}");
        assert!(!error.to_string().contains("guess"), "{error}");
    }
    Ok(())
}

/// A file that is not there is named, and not waited for.
#[tokio::test]
async fn settings_that_cannot_work_end_the_election() -> anyhow::Result<()> {
    let mut env = TestEnv::on_etcd().await?;
    env.config.etcd.tls_ca = Some("/nonexistent/ca.pem".to_owned());
    let campaign = run_campaign(env.elector("a", SHARD), &CancellationToken::new());
    let error = campaign.end().await.expect_err("no such file").to_string();
    assert!(
        error.contains("tls_ca") && error.contains("ca.pem"),
        "{error}"
    );
    env.config.etcd.tls_ca = None;
    let never = CancellationToken::new();
    let leader = won(env.elector("a", SHARD).acquire_leadership(&never)).await?;
    leader.release().await;
    Ok(())
}
