//! Nothing of one tenant is ever shown to another.

use crate::harness::{ACME, ADMIN, GLOBEX, Running, assert_problem, reply};

const BODY: &str = r#"{"topic": "job.echo"}"#;

#[tokio::test]
async fn a_key_opens_its_own_tenant_only() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let job = gateway.post("/api/v1/jobs", ACME, BODY).await?;
    assert_eq!(job.status, 202, "{}", job.text);
    let path = format!("/api/v1/jobs/{}", job.job_id());

    assert_eq!(gateway.get(&path, ACME).await?.json["tenant_id"], "acme");
    assert_eq!(gateway.get(&path, ADMIN).await?.status, 200);
    // Another's job and no job look the same, but for the id that was asked for.
    let theirs = gateway.get(&path, GLOBEX).await?;
    assert_problem(&theirs, 404, None);
    assert_problem(
        &gateway.get(&format!("{path}?wait=10ms"), GLOBEX).await?,
        404,
        None,
    );
    let cancel = gateway.post(&format!("{path}/cancel"), GLOBEX, "").await?;
    assert_problem(&cancel, 404, None);
    let list = gateway.get("/api/v1/jobs", GLOBEX).await?;
    assert_eq!(
        list.json["items"].as_array().map(Vec::len),
        Some(0),
        "{}",
        list.text
    );
    assert!(list.json["next_cursor"].is_null());

    for key in ["", "wrong", "acme"] {
        assert_problem(&gateway.get(&path, key).await?, 401, None);
        assert_problem(&gateway.post("/api/v1/jobs", key, BODY).await?, 401, None);
    }
    let bearer = gateway
        .http
        .get(format!("{}{path}", gateway.url))
        .bearer_auth(ACME);
    assert_eq!(reply(bearer).await?.status, 200);

    let as_tenant = |key: &str, tenant: &str| {
        reply(
            gateway
                .request("/api/v1/jobs", key, BODY)
                .header("x-tenant-id", tenant),
        )
    };
    assert_problem(&as_tenant(ACME, "globex").await?, 403, Some("X-Tenant-ID"));
    assert_eq!(as_tenant(ACME, "acme").await?.status, 202);
    assert_problem(&as_tenant(ADMIN, "*").await?, 400, Some("X-Tenant-ID"));
    let made = as_tenant(ADMIN, "globex").await?;
    assert_eq!(made.status, 202);
    let path = format!("/api/v1/jobs/{}", made.job_id());
    assert_eq!(gateway.get(&path, GLOBEX).await?.status, 200);

    // An administrator sees all, or the one tenant it names.
    let count = async |tenant: Option<&str>| {
        let mut request = gateway
            .http
            .get(format!("{}/api/v1/jobs", gateway.url))
            .header("x-api-key", ADMIN);
        if let Some(tenant) = tenant {
            request = request.header("x-tenant-id", tenant);
        }
        anyhow::Ok(reply(request).await?.json["items"].as_array().map(Vec::len))
    };
    assert_eq!(count(None).await?, Some(3));
    assert_eq!(count(Some("*")).await?, Some(3));
    assert_eq!(count(Some("globex")).await?, Some(1));
    gateway.stop().await
}
