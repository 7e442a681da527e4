//! What kernels say of themselves.

use airlock_ledger::KernelReport;

use crate::fixture::Fixture;

#[tokio::test]
async fn a_report_is_kept_with_its_times_until_the_kernel_is_silent() -> anyhow::Result<()> {
    let fixture = Fixture::start().await?;
    let mut report = KernelReport {
        instance: "a:1".to_owned(),
        snapshot: "sha256:1".to_owned(),
        generation: 3,
        files: vec!["/etc/safety.yaml".to_owned(), "/etc/more.yaml".to_owned()],
        ..KernelReport::default()
    };
    fixture.ledger.report_kernel(&report).await?;
    let first = fixture.ledger.kernels().await?.remove(0);
    assert_eq!(first.report, report);
    assert!(first.loaded_at.is_some() && first.refused_at.is_none());

    report.generation = 4;
    report.refused = Some("line 2".to_owned());
    fixture.ledger.report_kernel(&report).await?;
    let second = fixture.ledger.kernels().await?.remove(0);
    assert_eq!(
        second.loaded_at, first.loaded_at,
        "the same policy as before"
    );
    assert!(second.refused_at.is_some() && second.seen_at > first.seen_at);
    report.refused = Some("line 3".to_owned());
    fixture.ledger.report_kernel(&report).await?;
    let third = fixture.ledger.kernels().await?.remove(0);
    assert_eq!(third.refused_at, second.refused_at, "refused since then");

    (report.refused, report.snapshot) = (None, "sha256:2".to_owned());
    fixture.ledger.report_kernel(&report).await?;
    let fourth = fixture.ledger.kernels().await?.remove(0);
    assert!(fourth.loaded_at > first.loaded_at && fourth.refused_at.is_none());

    let other = KernelReport {
        instance: "b:1".to_owned(),
        ..report.clone()
    };
    fixture.ledger.report_kernel(&other).await?;
    assert_eq!(fixture.ledger.kernels().await?.len(), 2);
    let age = async |interval: &str| {
        let sql = format!(
            "UPDATE kernel_status SET seen_at = seen_at - interval '{interval}' WHERE instance = 'b:1'"
        );
        fixture.postgres.query(&sql).await
    };
    age("16 seconds").await?;
    assert_eq!(fixture.ledger.kernels().await?.len(), 1, "silent");
    age("2 hours").await?;
    fixture.ledger.report_kernel(&report).await?;
    assert_eq!(
        fixture.number("SELECT count(*) FROM kernel_status").await?,
        1
    );
    fixture.ledger.delete_kernel("a:1").await?;
    assert!(fixture.ledger.kernels().await?.is_empty());
    Ok(())
}
