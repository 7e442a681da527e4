//! A human between the doors: holding, approving, rejecting, expiring, and what a new
//! policy does to what is held. On the real binaries.

use std::time::Duration;

use airlock_client::{Approval, Client, EvaluationRequest, PublishRequest, SubmitRequest};
use airlock_model::JobState;
use airlock_testkit::{Seen, Stack, eventually};
use anyhow::{Result, ensure};
use serde_json::json;

const WAIT: Duration = Duration::from_secs(60);

const KEYS: &str = "
auth:
  keys:
    - {name: ann, key: ann-key, tenant: acme}
    - {name: bob, key: bob-key, tenant: acme, roles: [treasury]}
    - {name: cleo, key: cleo-key, tenant: acme, roles: [treasury]}
    - {name: zed, key: zed-key, tenant: globex}
";

/// Payments are held; `rule` is the rule that holds them.
fn policy(rule: &str) -> String {
    format!(
        "version: 1
default_decision: deny
rules:
{rule}
  - id: ordinary
    match: {{topics: [\"job.*\"]}}
    decision: allow
"
    )
}

const HOLD: &str = "  - id: payments
    match: {risk_tags: [money]}
    decision: require_approval
    reason: money moves
";

async fn start(rule: &str) -> Result<Stack> {
    Stack::builder()
        .policy(&policy(rule))
        .config_file("gateway.yaml", KEYS)
        .start()
        .await
}

fn as_(stack: &Stack, name: &str) -> Result<Client> {
    Ok(Client::new(&stack.api_url(), &format!("{name}-key"))?)
}

/// Submits payments as ann until one is held. For a moment after the policy changed, the
/// scheduler may still decide by the one before.
async fn held(stack: &Stack) -> Result<String> {
    let ann = as_(stack, "ann")?;
    let mut request = SubmitRequest::new("job.echo").payload(&json!({"amount": 5}))?;
    request.risk_tags = vec!["money".to_owned()];
    eventually(WAIT, "a payment to be held", || async {
        let job = ann.submit(&request).await?.job_id;
        let state = decided_on(&ann, &job).await?;
        Ok(match state == JobState::ApprovalRequired {
            true => Seen::Done(job),
            false => Seen::NotYet(format!("{job} is {state}")),
        })
    })
    .await
}

/// Where the job stands once it is held or has ended.
async fn decided_on(client: &Client, job: &str) -> Result<JobState> {
    eventually(WAIT, &format!("{job} to be held or to end"), || async {
        let job = client.get(job).await?;
        let settled = job.state == JobState::ApprovalRequired || job.state.is_final();
        Ok(match settled {
            true => Seen::Done(job.state),
            false => Seen::NotYet(job.state.to_string()),
        })
    })
    .await
}

fn runs_of(stack: &Stack, job: &str) -> Result<usize> {
    Ok(stack.journal()?.iter().filter(|l| l.job_id == job).count())
}

#[tokio::test]
async fn a_held_job_runs_once_somebody_else_approves_it() -> Result<()> {
    let stack = start(HOLD).await?;
    let job = held(&stack).await?;
    let (ann, bob) = (as_(&stack, "ann")?, as_(&stack, "bob")?);
    ensure!(runs_of(&stack, &job)? == 0, "it ran without an approval");
    let waiting = ann.get(&job).await?.waiting_reason.unwrap_or_default();
    ensure!(waiting.contains("payments"), "{waiting}");
    // Nobody approves their own, and no other tenant sees it.
    let own = ann.approve(&job, None, None).await;
    ensure!(own.is_err(), "{own:?}");
    let zed = as_(&stack, "zed")?;
    ensure!(zed.approvals(&Default::default()).await?.items.is_empty());
    ensure!(zed.approval(&job).await.is_err() && zed.approve(&job, None, None).await.is_err());

    let asked = bob.approvals(&Default::default()).await?.items;
    ensure!(asked.len() == 1 && asked[0].job_id == job, "{asked:?}");
    let narrowed = json!({"budgets": {"max_runtime_ms": 60_000}});
    bob.approve(&job, Some("fine"), Some(&narrowed)).await?;
    let done = ann.wait(&job, WAIT).await?;
    ensure!(done.state == JobState::Succeeded, "{done:?}");
    ensure!(runs_of(&stack, &job)? == 1);
    let decision = done.decision.expect("a decision");
    ensure!(
        decision.decision == "ALLOW_WITH_CONSTRAINTS",
        "{decision:?}"
    );
    ensure!(
        decision
            .reason
            .as_deref()
            .is_some_and(|r| r.contains("bob")),
        "{decision:?}"
    );
    let states: Vec<JobState> = done.history.iter().map(|h| h.state).collect();
    ensure!(
        states.starts_with(&[
            JobState::Pending,
            JobState::ApprovalRequired,
            JobState::Pending,
            JobState::Scheduled
        ]),
        "{states:?}"
    );
    let told = bob.approval(&job).await?;
    ensure!(told.approval.used_at.is_some(), "{told:?}");
    let kinds: Vec<&str> = told.audit.iter().map(|a| a.kind.as_str()).collect();
    ensure!(
        kinds == ["approval.requested", "approval.approved", "approval.used"],
        "{kinds:?}"
    );
    // The same request again is another job and asks again.
    let twin = held(&stack).await?;
    ensure!(twin != job && runs_of(&stack, &twin)? == 0);
    Ok(())
}

#[tokio::test]
async fn a_rejected_and_an_expired_job_are_denied() -> Result<()> {
    let hold = format!("{HOLD}    approval: {{expires_seconds: 30}}\n");
    let stack = start(&hold).await?;
    let bob = as_(&stack, "bob")?;
    let rejected = held(&stack).await?;
    bob.reject(&rejected, Some("not today")).await?;
    let expired = held(&stack).await?;
    let ended = bob.wait(&rejected, WAIT).await?;
    ensure!(ended.state == JobState::Denied, "{ended:?}");
    ensure!(
        ended.error_code.as_deref() == Some("approval_rejected"),
        "{ended:?}"
    );
    let ended = bob.wait(&expired, 2 * WAIT).await?;
    ensure!(ended.state == JobState::Denied, "{ended:?}");
    ensure!(
        ended.error_code.as_deref() == Some("approval_expired"),
        "{ended:?}"
    );
    ensure!(bob.approve(&expired, None, None).await.is_err());
    ensure!(stack.journal()?.is_empty(), "a denied job ran");
    let letters = stack
        .postgres()
        .query("SELECT count(*)::text FROM dead_letter WHERE reason_code = 'safety_denied'")
        .await?;
    ensure!(letters[0][0].as_deref() == Some("2"), "{letters:?}");
    Ok(())
}

#[tokio::test]
async fn two_must_agree_and_the_approved_job_survives_a_lost_wake_up() -> Result<()> {
    let hold = format!("{HOLD}    approval: {{quorum: 2, approver_roles: [treasury]}}\n");
    let stack = start(&hold).await?;
    let job = held(&stack).await?;
    let first = as_(&stack, "bob")?.approve(&job, None, None).await?;
    ensure!(
        first.approvals == 1 && first.status == "PENDING",
        "{first:?}"
    );
    // Without the bus there is no wake-up; the ledger's change log is enough.
    stack.nats().kill()?;
    as_(&stack, "cleo")?.approve(&job, None, None).await?;
    stack.nats().restart().await?;
    let done = as_(&stack, "ann")?.wait(&job, WAIT).await?;
    ensure!(done.state == JobState::Succeeded, "{done:?}");
    Ok(())
}

/// The newest request about a job, once it is as wanted.
async fn asked(
    client: &Client,
    job: &str,
    what: &str,
    wanted: impl Fn(&Approval) -> bool,
) -> Result<Approval> {
    eventually(WAIT, what, || async {
        let approval = client.approval(job).await?.approval;
        Ok(match wanted(&approval) {
            true => Seen::Done(approval),
            false => Seen::NotYet(format!("{approval:?}")),
        })
    })
    .await
}

#[tokio::test]
async fn a_new_policy_keeps_denies_releases_or_asks_anew() -> Result<()> {
    let hold = format!("{HOLD}    approval: {{quorum: 2}}\n");
    let stack = start(&hold).await?;
    let bob = as_(&stack, "bob")?;
    let job = held(&stack).await?;
    let before = bob.approve(&job, None, None).await?;
    ensure!(before.approvals == 1, "{before:?}");

    // Other rules changed, this one did not: the vote stands.
    let beside = "  - id: beside\n    match: {topics: [job.never]}\n    decision: deny\n";
    stack.write_policy(&policy(&format!("{beside}{hold}")))?;
    let kept = asked(&bob, &job, "the request to be kept", |a| {
        a.policy_snapshot != before.policy_snapshot
    })
    .await?;
    ensure!((kept.round, kept.approvals) == (1, 1), "{kept:?}");

    // The rule itself changed: everybody is asked anew.
    let other = hold.replace("money moves", "money moves, and the auditors watch");
    stack.write_policy(&policy(&other))?;
    let anew = asked(&bob, &job, "a new round", |a| a.round == 2).await?;
    ensure!(anew.approvals == 0 && anew.status == "PENDING", "{anew:?}");

    // Nobody needs to be asked: what is held is let in.
    let free = held(&stack).await?;
    stack.write_policy(&policy(
        "  - id: free\n    match: {risk_tags: [money]}\n    decision: allow\n",
    ))?;
    for id in [&job, &free] {
        let done = bob.wait(id, WAIT).await?;
        ensure!(done.state == JobState::Succeeded, "{done:?}");
    }
    stack.write_policy(&policy(&hold))?;
    eventually(WAIT, "payments to be held again", || async {
        let mut question = EvaluationRequest {
            topic: "job.echo".to_owned(),
            ..EvaluationRequest::default()
        };
        question
            .meta
            .insert("risk_tags".to_owned(), json!(["money"]));
        let answer = bob.simulate(&question).await?;
        Ok(Seen::when(
            answer.decision == "REQUIRE_APPROVAL",
            format!("{answer:?}"),
        ))
    })
    .await?;
    // The policy denies it: no approval is waited for.
    let job = held(&stack).await?;
    stack.write_policy(&policy(
        "  - id: frozen\n    match: {risk_tags: [money]}\n    decision: deny\n    reason: frozen\n",
    ))?;
    let done = bob.wait(&job, WAIT).await?;
    ensure!(done.state == JobState::Denied, "{done:?}");
    ensure!(
        done.error_code.as_deref() == Some("safety_denied"),
        "{done:?}"
    );
    Ok(())
}

#[tokio::test]
async fn the_policy_is_asked_explained_and_changed_over_rest() -> Result<()> {
    let stack = start(HOLD).await?;
    let (bob, root) = (
        as_(&stack, "bob")?,
        Client::new(&stack.api_url(), stack.api_key())?,
    );
    let mut payment = EvaluationRequest {
        topic: "job.echo".to_owned(),
        ..EvaluationRequest::default()
    };
    payment
        .meta
        .insert("risk_tags".to_owned(), json!(["money"]));
    let answer = bob.evaluate(&payment).await?;
    ensure!(
        answer.decision == "REQUIRE_APPROVAL" && answer.approval_required,
        "{answer:?}"
    );
    ensure!(answer.rule_id.as_deref() == Some("payments"), "{answer:?}");
    let why = bob.explain_policy(&payment).await?;
    ensure!(why.explanation.is_some(), "{why:?}");
    let snapshots = bob.policy_snapshots().await?.items;
    ensure!(
        snapshots[0].policy_snapshot == answer.policy_snapshot,
        "{snapshots:?}"
    );
    ensure!(
        bob.policy_rules().await.is_err(),
        "rules are for administrators"
    );
    let rules = root.policy_rules().await?;
    ensure!(
        rules.items.iter().any(|r| r["id"] == "payments"),
        "{rules:?}"
    );
    // Another tenant's question is not answered.
    payment.tenant = Some("globex".to_owned());
    ensure!(bob.evaluate(&payment).await.is_err());
    payment.tenant = None;

    // A published bundle is in force soon, and gone when it is rolled back.
    let publish = PublishRequest {
        name: "freeze".to_owned(),
        content: "version: 1\nrules:\n  - id: freeze\n    match: {risk_tags: [money]}\n    \
                  decision: deny\n    reason: frozen\n"
            .to_owned(),
        ..PublishRequest::default()
    };
    ensure!(
        bob.publish(&publish).await.is_err(),
        "only administrators publish"
    );
    root.publish(&publish).await?;
    decided(&bob, &payment, "DENY").await?;
    root.rollback("freeze", None).await?;
    decided(&bob, &payment, "REQUIRE_APPROVAL").await?;
    Ok(())
}

async fn decided(client: &Client, question: &EvaluationRequest, wanted: &str) -> Result<()> {
    eventually(WAIT, &format!("the policy to say {wanted}"), || async {
        let answer = client.simulate(question).await?;
        Ok(Seen::when(answer.decision == wanted, format!("{answer:?}")))
    })
    .await
}

#[tokio::test]
async fn a_candidate_is_tried_on_the_jobs_of_the_past() -> Result<()> {
    let stack = start(HOLD).await?;
    let ann = as_(&stack, "ann")?;
    held(&stack).await?;
    let plain = SubmitRequest::new("job.echo").payload(&json!(1))?;
    let ran = ann.submit_wait(&plain, WAIT).await?;
    ensure!(ran.state == JobState::Succeeded, "{ran:?}");
    // The candidate lets payments through and holds everything else.
    let candidate = stack.dir().unique_path("candidate", ".yaml");
    std::fs::write(
        &candidate,
        "version: 1\nrules:\n  - id: money\n    match: {risk_tags: [money]}\n    \
         decision: allow\n  - id: rest\n    match: {topics: [\"*\"]}\n    \
         decision: require_approval\n",
    )?;
    let mut command = tokio::process::Command::new(airlock_testkit::binary_path("airlock").await?);
    command
        .args(["policy", "replay", "--since", "7d", "--json"])
        .arg(&candidate)
        .env("AIRLOCK_URL", stack.api_url())
        .env("AIRLOCK_API_KEY", "ann-key");
    let output = tokio::time::timeout(WAIT, command.output()).await??;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{output:?}");
    let replay: serde_json::Value = serde_json::from_str(&text)?;
    ensure!(replay["newly_allowed"]["count"] == 1, "{text}");
    ensure!(replay["newly_held"]["count"] == 1, "{text}");
    ensure!(
        replay["newly_held"]["jobs"][0]["job_id"] == ran.job_id.as_str(),
        "{text}"
    );
    ensure!(replay["newly_denied"]["count"] == 0, "{text}");
    Ok(())
}
