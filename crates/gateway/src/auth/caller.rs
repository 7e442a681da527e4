//! The caller behind a request.

use airlock_ledger::{Actor, Voter};
use airlock_model::{ActsFor, Credential, TenantId};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::Permission;
use crate::config::Role;
use crate::http::problem::Problem;

/// The name that jobs have as their submitter when they came without an API key.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Who sent the request. Handlers take it as an argument; the router puts it there once
/// the caller has the permission of the route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The key's name.
    pub(crate) name: String,
    /// The person behind the key, when it says so.
    pub(crate) principal: Option<String>,
    /// What a rule may ask of who approves: the key's roles, `user` or `admin` among them.
    pub(crate) approver_roles: Vec<String>,
    /// As whom it may submit.
    pub(crate) acts_for: ActsFor,
    pub(crate) role: Role,
    /// Whose jobs may be seen and cancelled; `None`: everybody's.
    pub(crate) scope: Option<TenantId>,
    /// For whom jobs are submitted; `None` when that was left open.
    pub(crate) submits_for: Option<TenantId>,
}

impl Caller {
    /// Whoever submits tasks to this tenant without an API key. No key may have this name.
    pub(crate) fn anonymous(tenant: &TenantId) -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            principal: None,
            approver_roles: Vec::new(),
            acts_for: ActsFor::Names(Vec::new()),
            role: Role::User,
            scope: Some(tenant.clone()),
            submits_for: Some(tenant.clone()),
        }
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.role == Role::Admin
    }

    /// Refuses the caller unless one of its roles grants the permission.
    pub(crate) fn check_permission(&self, permission: Permission) -> Result<(), Problem> {
        if permission.is_granted_to(self.role) || permission.is_granted_by(&self.approver_roles) {
            return Ok(());
        }
        let needed = if permission == Permission::ReviewOutput {
            "this needs an administrator's key, or one with the role output_reviewer"
        } else {
            "this needs an administrator's key"
        };
        Err(Problem::forbidden(needed).with_key_name(&self.name))
    }

    /// Whose jobs this caller's are.
    pub(crate) fn to_credential(&self) -> Credential {
        Credential {
            name: self.name.clone(),
            principal: self.principal.clone().unwrap_or_else(|| self.name.clone()),
            acts_for: self.acts_for.clone(),
        }
    }

    /// Under whose name the audit trail has what this caller does.
    pub(crate) fn as_actor(&self) -> Actor<'_> {
        Actor {
            key: &self.name,
            principal: self.principal.as_deref(),
        }
    }

    /// Who votes when this caller approves or rejects.
    pub(crate) fn to_voter(&self) -> Voter {
        Voter {
            key: self.name.clone(),
            principal: self.principal.clone(),
            roles: self.approver_roles.clone(),
            admin: self.is_admin(),
        }
    }

    pub(crate) fn submit_tenant(&self) -> Result<&TenantId, Problem> {
        self.submits_for.as_ref().ok_or_else(|| {
            Problem::invalid_field(
                "X-Tenant-ID",
                "a job belongs to one tenant; name it instead of *",
            )
        })
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.remove::<Self>().ok_or_else(|| {
            // Every route is behind the authorization of the route table.
            tracing::error!(path = parts.uri.path(), "request was not authorized");
            Problem::internal()
        })
    }
}
