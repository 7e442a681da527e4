//! Who may speak about a job: a plain function of who speaks and what is asked.
//!
//! What must stay true: nobody approves their own job, by whatever of their names. Names
//! are compared without case, as everywhere in the policy.

use airlock_model::Credential;

use crate::approvals::{Approval, Permitted};

/// Who speaks.
#[derive(Debug, Clone)]
pub struct Voter {
    /// The API key's name.
    pub key: String,
    /// The person behind the key; several keys may be one person's.
    pub principal: Option<String>,
    pub roles: Vec<String>,
    /// An administrator of the installation.
    pub admin: bool,
}

impl Voter {
    /// The name a vote counts under: two keys of one person are one voice.
    pub fn name(&self) -> &str {
        self.principal.as_deref().unwrap_or(&self.key)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        [Some(self.key.as_str()), self.principal.as_deref()]
            .into_iter()
            .flatten()
    }
}

/// Why somebody may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is their own job.
    Own,
    /// The rule names others.
    NotPermitted,
    /// Nothing proves who sent it over the bus, so that it may be the voter.
    UnverifiedSender,
}

fn contains_any_name<'a>(list: &[String], mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| list.iter().any(|entry| entry.eq_ignore_ascii_case(name)))
}

impl Permitted {
    /// With nobody named, anyone who sees the job.
    pub fn permits(&self, voter: &Voter) -> bool {
        (self.approvers.is_empty() && self.approver_roles.is_empty())
            || contains_any_name(&self.approvers, voter.names())
            || contains_any_name(&self.approver_roles, voter.roles.iter().map(String::as_str))
    }
}

/// Whose job it is, by every name that is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobAuthors<'a> {
    pub submitted_by: Option<&'a str>,
    pub submitted_principal: Option<&'a str>,
    pub principal_id: Option<&'a str>,
    pub actor_id: Option<&'a str>,
    /// Whoever brought the request before it was retried.
    pub earlier: &'a [String],
}

impl<'a> JobAuthors<'a> {
    fn of(approval: &'a Approval) -> Self {
        Self {
            submitted_by: approval.submitted_by.as_deref(),
            submitted_principal: approval.submitted_principal.as_deref(),
            principal_id: approval.spec.principal_id.as_deref(),
            actor_id: approval.spec.actor_id.as_deref(),
            earlier: &approval.authors,
        }
    }

    fn submitters(&self) -> impl Iterator<Item = &'a str> {
        [self.submitted_by, self.submitted_principal]
            .into_iter()
            .flatten()
            .chain(self.earlier.iter().map(String::as_str))
    }

    /// A sender on the bus may be a person with a key, too.
    fn include(&self, voter: &Voter) -> bool {
        let names = [self.principal_id, self.actor_id].into_iter().flatten();
        names
            .chain(self.submitters())
            .flat_map(|name| {
                [
                    Some(name),
                    name.strip_prefix(Credential::BUS),
                    name.strip_prefix(Credential::SIGNED),
                ]
            })
            .flatten()
            .any(|author| voter.names().any(|name| name.eq_ignore_ascii_case(author)))
    }

    /// Whether the job, or one that it is a retry of, came over the bus without a signature.
    /// Its sender id is then free text: an author could send under any name and approve under
    /// their own. What was stored before signatures were recorded counts as unsigned.
    fn have_unverified_sender(&self) -> bool {
        self.submitters()
            .filter_map(|name| name.strip_prefix(Credential::BUS))
            .any(|sender| {
                let proof = Credential::signed_sender(sender);
                !self.submitters().any(|name| name == proof)
            })
    }
}

/// Whether `voter` may approve or reject this. Rejecting one's own job is what
/// cancelling is for, so both are refused alike.
pub fn may_vote(voter: &Voter, approval: &Approval) -> Result<(), Refusal> {
    let authors = JobAuthors::of(approval);
    if authors.include(voter) {
        return Err(Refusal::Own);
    }
    if !approval.permitted.permits(voter) {
        return Err(Refusal::NotPermitted);
    }
    if !voter.admin && authors.have_unverified_sender() {
        return Err(Refusal::UnverifiedSender);
    }
    Ok(())
}

/// Whether `voter` may read and release what a job of these authors put out.
pub(crate) fn check_reviewer(voter: &Voter, authors: &JobAuthors<'_>) -> Result<(), Refusal> {
    if authors.include(voter) {
        return Err(Refusal::Own);
    }
    if !voter.admin && authors.have_unverified_sender() {
        return Err(Refusal::UnverifiedSender);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use airlock_model::{JobId, JobSpec, JobState, TenantId, Timestamp, Topic};

    use super::*;
    use crate::approvals::ApprovalStatus;

    fn approval() -> Approval {
        let mut spec = JobSpec::new(Topic::new("job.pay").unwrap());
        spec.principal_id = Some("ann".to_owned());
        spec.actor_id = Some("agent-7".to_owned());
        Approval {
            job_id: JobId::new("j").unwrap(),
            round: 1,
            tenant: TenantId::new("acme").unwrap(),
            spec,
            job_hash: vec![1],
            job_state: JobState::ApprovalRequired,
            submitted_by: Some("ann-laptop".to_owned()),
            submitted_principal: Some("annette".to_owned()),
            authors: ["carl-tablet", "bus:dora", "signed:dora"]
                .map(str::to_owned)
                .to_vec(),
            trace_id: String::new(),
            traceparent: String::new(),
            rule_id: "r".to_owned(),
            rule_hash: "h".to_owned(),
            policy_snapshot: "s".to_owned(),
            reason: String::new(),
            quorum: 1,
            permitted: Permitted::default(),
            status: ApprovalStatus::Pending,
            requested_at: Timestamp(0),
            expires_at: Timestamp(1),
            decided_at: None,
            decided_reason: None,
            used_at: None,
            votes: Vec::new(),
        }
    }

    fn voter(key: &str, principal: Option<&str>, roles: &[&str]) -> Voter {
        Voter {
            key: key.to_owned(),
            principal: principal.map(str::to_owned),
            roles: roles.iter().map(|r| (*r).to_owned()).collect(),
            admin: false,
        }
    }

    #[test]
    fn a_job_of_an_unverified_sender_is_for_administrators() {
        let bob = voter("bob", None, &["admin"]);
        let admin = Voter {
            admin: true,
            ..voter("root", None, &[])
        };
        let from = |by: &str, principal: Option<&str>, authors: &[&str]| Approval {
            submitted_by: Some(by.to_owned()),
            submitted_principal: principal.map(str::to_owned),
            authors: authors.iter().map(|a| (*a).to_owned()).collect(),
            ..approval()
        };
        for unverified in [
            from("bus:x", Some("bus:x"), &[]),
            from("bus:x", None, &[]),
            from("bus:x", Some("signed:y"), &[]),
            // A retry does not make it anybody else's.
            from("carl", Some("carl"), &["bus:x"]),
            from("carl", Some("carl"), &["bus:x", "bus:y", "signed:y"]),
        ] {
            let refused = Err(Refusal::UnverifiedSender);
            assert_eq!(may_vote(&bob, &unverified), refused, "{unverified:?}");
            assert_eq!(may_vote(&admin, &unverified), Ok(()), "{unverified:?}");
        }
        for verified in [
            from("bus:x", Some("signed:x"), &[]),
            from("carl", Some("carl"), &["bus:x", "signed:x"]),
        ] {
            assert_eq!(may_vote(&bob, &verified), Ok(()), "{verified:?}");
            let x = voter("x", None, &[]);
            assert_eq!(may_vote(&x, &verified), Err(Refusal::Own));
        }
    }

    #[test]
    fn nobody_approves_their_own_job_by_any_of_their_names() {
        let a = approval();
        for own in [
            voter("ann-laptop", None, &[]),
            voter("ANN-laptop", None, &[]),
            voter("ann-phone", Some("Ann"), &["admin"]),
            voter("ann", None, &[]),
            voter("agent-7", None, &[]),
            voter("annes-phone", Some("annette"), &[]),
            voter("carl-tablet", None, &[]),
            voter("k", Some("dora"), &[]),
        ] {
            assert_eq!(may_vote(&own, &a), Err(Refusal::Own), "{own:?}");
        }
        assert_eq!(may_vote(&voter("bob", None, &[]), &a), Ok(()));
    }

    #[test]
    fn a_rule_may_name_people_and_roles() {
        let mut a = approval();
        a.permitted.approvers = vec!["Bob".to_owned()];
        a.permitted.approver_roles = vec!["treasury".to_owned()];
        assert_eq!(may_vote(&voter("bob", None, &[]), &a), Ok(()));
        assert_eq!(may_vote(&voter("k", Some("bob"), &[]), &a), Ok(()));
        assert_eq!(may_vote(&voter("eve", None, &["Treasury"]), &a), Ok(()));
        let eve = voter("eve", None, &["user"]);
        assert_eq!(may_vote(&eve, &a), Err(Refusal::NotPermitted));
        // Being named does not make one's own job somebody else's.
        a.permitted.approvers.push("ann".to_owned());
        assert_eq!(may_vote(&voter("ann", None, &[]), &a), Err(Refusal::Own));
    }
}
