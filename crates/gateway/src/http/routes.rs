//! The route table: the method, the path, the permission and the handler of each route.
//!
//! What must stay true: there is no way to the handlers but this table, and every entry
//! names the permission that its callers need. Whether the caller has it is checked before
//! the handler runs, so that a handler cannot forget to.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use tower_http::catch_panic::CatchPanicLayer;

use super::problem::Problem;
use super::{
    App, approvals, bundles, decisions, dlq, edge, explain, jobs, leader, output, policy,
    quarantine, sagas, submit, tasks,
};
use crate::auth::{Caller, Permission, has_key};
use crate::submit::wake_up::local_now;
use crate::tasks::check_local_request;

struct Route {
    path: &'static str,
    permission: Permission,
    handler: MethodRouter<Arc<App>>,
    #[cfg(test)]
    method: MethodFilter,
}

fn new_route<H, T>(
    method: MethodFilter,
    path: &'static str,
    permission: Permission,
    handler: H,
) -> Route
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    Route {
        path,
        permission,
        handler: on(method, handler),
        #[cfg(test)]
        method,
    }
}

#[rustfmt::skip]
fn route_table() -> Vec<Route> {
    use Permission as P;
    const GET: MethodFilter = MethodFilter::GET;
    const POST: MethodFilter = MethodFilter::POST;
    const DELETE: MethodFilter = MethodFilter::DELETE;
    vec![
        new_route(POST, "/api/v1/jobs", P::SubmitJobs, submit::submit_job),
        new_route(GET, "/api/v1/jobs", P::ReadJobs, jobs::list_jobs),
        new_route(POST, "/api/v1/jobs/batch", P::SubmitJobs, submit::submit_batch),
        new_route(GET, "/api/v1/jobs/{id}", P::ReadJobs, jobs::get_job),
        new_route(POST, "/api/v1/jobs/{id}/cancel", P::CancelJobs, jobs::cancel_job),
        new_route(GET, "/api/v1/jobs/{id}/explain", P::ReadJobs, explain::explain_job),
        new_route(GET, "/api/v1/dlq", P::ReadDeadLetters, dlq::list_dead_letters),
        new_route(POST, "/api/v1/dlq/retry", P::ManageDeadLetters, dlq::bulk_retry_dead_letters),
        new_route(POST, "/api/v1/dlq/delete", P::ManageDeadLetters, dlq::bulk_delete_dead_letters),
        new_route(GET, "/api/v1/dlq/{id}", P::ReadDeadLetters, dlq::get_dead_letter),
        new_route(DELETE, "/api/v1/dlq/{id}", P::ManageDeadLetters, dlq::delete_dead_letter),
        new_route(POST, "/api/v1/dlq/{id}/retry", P::ManageDeadLetters, dlq::retry_dead_letter),
        new_route(GET, "/api/v1/quarantine", P::ReviewOutput, quarantine::list_quarantine),
        new_route(GET, "/api/v1/quarantine/{id}", P::ReviewOutput, quarantine::get_quarantined_output),
        new_route(GET, "/api/v1/quarantine/{id}/evidence", P::ReviewOutput, quarantine::get_evidence),
        new_route(POST, "/api/v1/quarantine/{id}/release", P::ReviewOutput, quarantine::release_output),
        new_route(POST, "/api/v1/quarantine/{id}/reject", P::ReviewOutput, quarantine::reject_output),
        new_route(POST, "/api/v1/output/scan", P::ScanOutput, output::scan_text),
        new_route(POST, "/api/v1/output/redact", P::ScanOutput, output::redact_text),
        new_route(POST, "/api/v1/output/rescans", P::ReviewOutput, output::create_rescan),
        new_route(GET, "/api/v1/output/rescans/{id}", P::ReviewOutput, output::get_rescan),
        new_route(POST, "/tasks", P::SubmitTasks, tasks::create_task),
        new_route(GET, "/tasks/{id}", P::ReadTasks, tasks::get_task),
        new_route(GET, "/api/v1/approvals", P::ReadApprovals, approvals::list_approvals),
        new_route(GET, "/api/v1/approvals/{id}", P::ReadApprovals, approvals::get_approval),
        new_route(POST, "/api/v1/approvals/{id}/approve", P::Vote, approvals::approve_job),
        new_route(POST, "/api/v1/approvals/{id}/reject", P::Vote, approvals::reject_job),
        new_route(GET, "/api/v1/sagas", P::ReadSagas, sagas::list_sagas),
        new_route(GET, "/api/v1/sagas/{id}", P::ReadSagas, sagas::get_saga),
        new_route(GET, "/api/v1/sagas/{id}/receipt", P::ReadSagas, sagas::get_receipt),
        new_route(POST, "/api/v1/sagas/{id}/rollback", P::ManageSagas, sagas::roll_back),
        new_route(POST, "/api/v1/sagas/{id}/retry", P::ManageSagas, sagas::retry_saga),
        new_route(POST, "/api/v1/sagas/{id}/skip", P::ManageSagas, sagas::skip_compensation),
        new_route(POST, "/api/v1/sagas/{id}/resolve", P::ManageSagas, sagas::resolve_saga),
        new_route(POST, "/api/v1/sagas/{id}/complete", P::ManageSagas, sagas::complete_saga),
        new_route(POST, "/api/v1/policy/evaluate", P::EvaluatePolicy, policy::evaluate_policy),
        new_route(POST, "/api/v1/policy/simulate", P::EvaluatePolicy, policy::simulate_policy),
        new_route(POST, "/api/v1/policy/explain", P::EvaluatePolicy, policy::explain_policy),
        new_route(GET, "/api/v1/policy/snapshots", P::EvaluatePolicy, policy::list_snapshots),
        new_route(GET, "/api/v1/policy/decisions", P::ReadDecisions, decisions::list_past_decisions),
        new_route(GET, "/api/v1/policy/rules", P::ManagePolicy, policy::list_rules),
        new_route(GET, "/api/v1/policy/status", P::ManagePolicy, bundles::get_policy_status),
        new_route(POST, "/api/v1/policy/bundles", P::ManagePolicy, bundles::publish_bundle),
        new_route(GET, "/api/v1/policy/bundles", P::ManagePolicy, bundles::list_bundles),
        new_route(POST, "/api/v1/policy/bundles/{name}/rollback", P::ManagePolicy, bundles::roll_back_bundle),
        new_route(GET, "/api/v1/leader", P::ManageLeader, leader::get_leader),
        new_route(POST, "/api/v1/leader/step-down", P::ManageLeader, leader::step_down),
    ]
}

pub(crate) fn build_router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for route in route_table() {
        let guard = from_fn_with_state((Arc::clone(&app), route.permission), authorize);
        router = router.route(route.path, route.handler.route_layer(guard));
    }
    router
        .method_not_allowed_fallback(handle_wrong_method)
        .fallback(handle_unknown_route)
        .layer(CatchPanicLayer::custom(edge::panic_response))
        .layer(from_fn_with_state(
            Arc::clone(&app),
            edge::apply_timeout_and_render,
        ))
        .with_state(app)
}

/// Lets a request through to its handler if the caller has the route's permission.
async fn authorize(
    State((app, permission)): State<(Arc<App>, Permission)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match app.authorize_caller(permission, &parts) {
        Ok(caller) => {
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(problem) => problem.into_response(),
    }
}

impl App {
    /// The caller of a request, who has this permission.
    fn authorize_caller(&self, permission: Permission, request: &Parts) -> Result<Caller, Problem> {
        let anonymous = self.anonymous_tasks && permission.may_be_anonymous();
        if anonymous && !has_key(&request.headers) {
            check_local_request(&request.method, &request.uri, &request.headers)?;
            return Ok(Caller::anonymous(&self.tasks.tenant));
        }
        let caller = self
            .keys
            .current()
            .authenticate(&request.headers, local_now())?;
        caller.check_permission(permission)?;
        Ok(caller)
    }
}

async fn handle_unknown_route(request: Request) -> Problem {
    Problem::no_such_route(request.uri().path())
}

async fn handle_wrong_method(request: Request) -> Problem {
    Problem::wrong_method(request.method().as_str(), request.uri().path())
}

#[cfg(test)]
mod tests {
    use airlock_model::TenantId;
    use airlock_service::{Context, Secret};
    use axum::body::Body;
    use axum::http::{Method, StatusCode};
    use tower::ServiceExt;

    use super::*;
    use crate::config::{GatewayConfig, KeyConfig, Role};
    use crate::connections::Links;

    const ADMIN_KEY: &str = "admin-key";
    const USER_KEY: &str = "user-key";
    const EXPIRED_KEY: &str = "expired-key";
    const REVIEWER_KEY: &str = "reviewer-key";

    /// Without Postgres, NATS and a safety kernel: whoever is let in is answered 4xx or 503.
    async fn gateway(anonymous_tasks: bool) -> Router {
        let mut config = GatewayConfig::default();
        config.auth.development_key = Secret::from(ADMIN_KEY);
        config.auth.anonymous_tasks = anonymous_tasks;
        let minute = std::time::Duration::from_secs(60);
        let key = |name: &str, key: &str, role, expires_at| KeyConfig {
            name: name.to_owned(),
            key: Secret::from(key),
            key_sha256: String::new(),
            tenant: TenantId::new(name).unwrap(),
            role,
            principal: None,
            roles: Vec::new(),
            act_for: Vec::new(),
            expires_at: Some(expires_at),
        };
        let mut reviewer = key("rita", REVIEWER_KEY, Role::User, local_now() + minute * 60);
        reviewer.roles = vec!["Output_Reviewer".to_owned()];
        config.auth.keys = vec![
            reviewer,
            key("acme", USER_KEY, Role::User, local_now() + minute * 60),
            key("old", EXPIRED_KEY, Role::Admin, local_now() - minute),
        ];
        let ctx = Context::for_host("gateway");
        let app = App::new(config, Links::default(), &ctx).await.unwrap();
        build_router(Arc::new(app))
    }

    async fn status(router: &Router, route: &Route, key: Option<&str>) -> StatusCode {
        let method = match route.method {
            MethodFilter::GET => Method::GET,
            MethodFilter::POST => Method::POST,
            MethodFilter::DELETE => Method::DELETE,
            other => panic!("{other:?} of {}", route.path),
        };
        let path = route.path.replace("{id}", "1").replace("{name}", "x");
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let request = request.body(Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    }

    #[tokio::test]
    async fn every_route_needs_a_key_and_its_permission() {
        let router = gateway(false).await;
        let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
        for route in route_table() {
            let path = route.path;
            for key in [None, Some("wrong"), Some(""), Some(EXPIRED_KEY)] {
                let status = status(&router, &route, key).await;
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{path} {key:?}");
            }
            let user = status(&router, &route, Some(USER_KEY)).await;
            if route.permission.is_granted_to(Role::User) {
                assert!(!refused.contains(&user), "{path}: {user}");
            } else {
                assert_eq!(user, StatusCode::FORBIDDEN, "{path}");
            }
            let reviewer = status(&router, &route, Some(REVIEWER_KEY)).await;
            let granted = route.permission.is_granted_to(Role::User)
                || route.permission == Permission::ReviewOutput;
            assert_eq!(!refused.contains(&reviewer), granted, "{path}: {reviewer}");
            let admin = status(&router, &route, Some(ADMIN_KEY)).await;
            assert!(!refused.contains(&admin), "{path}: {admin}");
        }
    }

    #[tokio::test]
    async fn only_tasks_are_open_to_anonymous_callers() {
        let router = gateway(true).await;
        for route in route_table() {
            let let_in = status(&router, &route, None).await != StatusCode::UNAUTHORIZED;
            assert_eq!(let_in, route.path.starts_with("/tasks"), "{}", route.path);
            // A wrong key is not the same as none.
            let wrong = status(&router, &route, Some("wrong")).await;
            assert_eq!(wrong, StatusCode::UNAUTHORIZED, "{}", route.path);
        }
    }

    /// Written out, so that a route that becomes open to users is seen here.
    #[test]
    fn the_policy_the_quarantine_and_the_leader_are_not_for_users() {
        let admin_only: Vec<&str> = route_table()
            .iter()
            .filter(|route| !route.permission.is_granted_to(Role::User))
            .map(|route| route.path)
            .collect();
        assert_eq!(
            admin_only,
            [
                "/api/v1/quarantine",
                "/api/v1/quarantine/{id}",
                "/api/v1/quarantine/{id}/evidence",
                "/api/v1/quarantine/{id}/release",
                "/api/v1/quarantine/{id}/reject",
                "/api/v1/output/rescans",
                "/api/v1/output/rescans/{id}",
                "/api/v1/policy/rules",
                "/api/v1/policy/status",
                "/api/v1/policy/bundles",
                "/api/v1/policy/bundles",
                "/api/v1/policy/bundles/{name}/rollback",
                "/api/v1/leader",
                "/api/v1/leader/step-down",
            ]
        );
    }
}
