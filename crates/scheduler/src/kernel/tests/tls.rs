//! TLS between scheduler and kernel, with certificates made for the test.

use airlock_model::Decision;
use airlock_testkit::TestDir;
use anyhow::Context as _;

use super::bed::{ALLOW, Bed, Told};

/// A certificate for this machine that is its own authority; the paths of certificate
/// and key.
fn certificate(dir: &TestDir, name: &str) -> anyhow::Result<(String, String)> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let path = |ending: &str| -> anyhow::Result<String> {
        let path = dir.path().join(format!("{name}.{ending}"));
        path.into_os_string().into_string().ok().context("a path")
    };
    let (cert, key) = (path("pem")?, path("key")?);
    std::fs::write(&cert, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    Ok((cert, key))
}

#[tokio::test]
async fn a_ca_means_tls_and_nothing_else_gets_through() -> anyhow::Result<()> {
    let dir = TestDir::new()?;
    let (cert, key) = certificate(&dir, "kernel")?;
    let (stranger, _) = certificate(&dir, "stranger")?;
    let bed = Bed::with(
        ALLOW,
        &[
            ("AIRLOCK_GRPC__TLS__CERT", &cert),
            ("AIRLOCK_GRPC__TLS__KEY", &key),
            ("SAFETY_KERNEL_INSECURE", "false"),
            ("SAFETY_KERNEL_TLS_REQUIRED", "true"),
        ],
    )
    .await?;

    // The URL says http, and TLS is spoken all the same.
    let mut trusted = bed.config();
    trusted.insecure = false;
    trusted.tls_required = true;
    trusted.tls_ca = Some(cert);
    assert_eq!(trusted.validate(), Vec::<String>::new());
    let r = bed.replica(&trusted).await?;
    assert_eq!(r.ask_anew().await?.decision(), Some(Decision::Allow));

    let mut wrong = trusted.clone();
    wrong.tls_ca = Some(stranger);
    let r = bed.replica(&wrong).await?;
    assert!(matches!(r.ask_anew().await?, Told::Wait(_)), "another's CA");

    let r = bed.replica(&bed.config()).await?;
    assert!(matches!(r.ask_anew().await?, Told::Wait(_)), "plain text");
    Ok(())
}

#[tokio::test]
async fn a_missing_ca_file_is_said_at_once() -> anyhow::Result<()> {
    let bed = Bed::new(ALLOW).await?;
    let mut config = bed.config();
    config.tls_ca = Some("/no/such/ca.pem".to_owned());
    let refused = bed
        .replica(&config)
        .await
        .err()
        .context("it must not start")?;
    assert!(refused.to_string().contains("/no/such/ca.pem"), "{refused}");
    Ok(())
}
