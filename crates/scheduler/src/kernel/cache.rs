//! Decisions that need not be asked for again.
//!
//! What must stay true: an answer is given only to a job that agrees with the one it was
//! made for on every field the rules read on the way, under the snapshot it was made
//! under, and only while that snapshot was confirmed to be in force within the last
//! second. The values themselves are compared, not a hash of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use airlock_model::engine::QueuedJob;
use airlock_model::reads::Reads;
use airlock_model::{ApprovalTerms, Constraints, Decision, Timestamp, Verdict};

/// How long a confirmation holds.
pub const CONFIRMED_FOR: Duration = Duration::from_secs(1);

/// Sets of fields at most; each costs a look-up. Rules are asked in order, so that the
/// sets grow one from the other and are few.
const MAX_READ_SETS: usize = 32;

/// Longer keys are not worth their memory.
const LONGEST_KEY: usize = 4 * 1024;

/// What is the same for every job an answer holds for.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub decision: Decision,
    pub reason: String,
    pub rule_id: String,
    pub rule_hash: String,
    pub snapshot: String,
    pub constraints: Option<Arc<Constraints>>,
    pub approval: Option<ApprovalTerms>,
    pub tenant_concurrency: Option<u32>,
}

impl Answer {
    pub fn to_verdict(&self, decided_at: Timestamp, confirmed_at: Timestamp) -> Verdict {
        Verdict {
            decision: self.decision,
            reason: self.reason.clone(),
            rule_id: self.rule_id.clone(),
            snapshot: self.snapshot.clone(),
            decided_at,
            confirmed_at,
            rule_hash: self.rule_hash.clone(),
            constraints: self.constraints.clone(),
            approval: self.approval.clone(),
            approved: None,
            tenant_concurrency: self.tenant_concurrency,
        }
    }
}

type Map = HashMap<Box<[u8]>, Arc<Answer>>;

/// See the module's page.
#[derive(Default)]
pub struct Cache {
    limit: usize,
    snapshot: String,
    confirmed_at: Option<Timestamp>,
    read_sets: Vec<Reads>,
    /// Used since the last turn, and before it. When the young are half of what is
    /// allowed, the old are forgotten and the young are the old.
    young: Map,
    old: Map,
    key: Vec<u8>,
}

impl Cache {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// The kernel said that this snapshot was in force at `asked_at` or later.
    pub fn confirm_snapshot(&mut self, snapshot: &str, asked_at: Timestamp) {
        if self.confirmed_at.is_some_and(|at| at > asked_at) {
            return;
        }
        if self.snapshot != snapshot {
            self.snapshot.clear();
            self.snapshot.push_str(snapshot);
            self.read_sets.clear();
            self.young.clear();
            self.old.clear();
        }
        self.confirmed_at = Some(asked_at);
    }

    pub fn get(&mut self, job: &QueuedJob, now: Timestamp) -> Option<Verdict> {
        let confirmed_at = self
            .confirmed_at
            .filter(|at| now.since(*at) <= CONFIRMED_FOR)?;
        for i in 0..self.read_sets.len() {
            self.make_key(i, job);
            if let Some(answer) = self.young.get(self.key.as_slice()) {
                return Some(answer.to_verdict(now, confirmed_at));
            }
            if let Some((key, answer)) = self.old.remove_entry(self.key.as_slice()) {
                let verdict = answer.to_verdict(now, confirmed_at);
                self.insert(key, answer);
                return Some(verdict);
            }
        }
        None
    }

    /// Keeps an answer for jobs that agree with `job` on `reads`.
    pub fn put(&mut self, reads: &Reads, job: &QueuedJob, answer: Answer) {
        if self.limit == 0 || answer.snapshot != self.snapshot || answer.snapshot.is_empty() {
            return;
        }
        let i = match self.read_sets.iter().position(|s| s == reads) {
            Some(i) => i,
            None if self.read_sets.len() < MAX_READ_SETS => {
                self.read_sets.push(reads.clone());
                self.read_sets.len() - 1
            }
            None => return,
        };
        self.make_key(i, job);
        if self.key.len() <= LONGEST_KEY {
            let key = self.key.as_slice().into();
            self.insert(key, Arc::new(answer));
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn insert(&mut self, key: Box<[u8]>, answer: Arc<Answer>) {
        if self.young.len() >= self.limit.div_ceil(2) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, answer);
    }

    fn make_key(&mut self, read_set: usize, job: &QueuedJob) {
        self.key.clear();
        self.key.push(read_set as u8);
        if let Some(reads) = self.read_sets.get(read_set) {
            reads.write_key(job, &mut self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use airlock_model::{Attempt, JobId, JobSpec, TenantId, Topic};

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp(ms * 1000)
    }

    fn job(topic: &str, customer: &str) -> QueuedJob {
        let mut spec = JobSpec::new(Topic::new(topic).unwrap());
        spec.labels = BTreeMap::from([("customer".to_owned(), customer.to_owned())]);
        QueuedJob {
            id: JobId::new("j").unwrap(),
            tenant: TenantId::new("acme").unwrap(),
            spec: Arc::new(spec),
            trace_id: String::new(),
            traceparent: String::new(),
            created_at: at(0),
            deadline_at: None,
            not_before: None,
            attempt: Attempt(0),
            payload_len: 0,
            lost: false,
            since: None,
        }
    }

    fn answer(snapshot: &str, rule: &str) -> Answer {
        Answer {
            decision: Decision::Allow,
            reason: "because".to_owned(),
            rule_id: rule.to_owned(),
            rule_hash: String::new(),
            snapshot: snapshot.to_owned(),
            constraints: None,
            approval: None,
            tenant_concurrency: None,
        }
    }

    fn reads(names: &[&str]) -> Reads {
        Reads::from_names(names).unwrap()
    }

    #[test]
    fn only_what_agrees_on_every_field_that_was_read() {
        let mut cache = Cache::new(100);
        cache.confirm_snapshot("s1", at(0));
        cache.put(
            &reads(&["topic", "labels.customer"]),
            &job("job.a", "x"),
            answer("s1", "r"),
        );
        assert_eq!(cache.get(&job("job.a", "x"), at(1)).unwrap().rule_id, "r");
        assert!(cache.get(&job("job.a", "y"), at(1)).is_none());
        assert!(cache.get(&job("job.b", "x"), at(1)).is_none());
        cache.put(&reads(&["topic"]), &job("job.b", "x"), answer("s1", "b"));
        let found = cache.get(&job("job.b", "z"), at(1)).unwrap();
        assert_eq!(found.rule_id, "b", "the customer was not read");
        assert_eq!((found.decided_at, found.confirmed_at), (at(1), at(0)));
    }

    #[test]
    fn a_cost_and_a_label_of_another_spelling_are_not_taken_for_none() {
        let mut cache = Cache::new(100);
        cache.confirm_snapshot("s", at(0));
        let reads = reads(&["estimated_cost", "labels.env"]);
        let with = |cost: Option<f64>, name: Option<&str>| {
            let mut job = job("job.a", "x");
            let spec = Arc::make_mut(&mut job.spec);
            spec.estimated_cost = cost.map(|c| airlock_model::job::Cost::new(c).unwrap());
            if let Some(name) = name {
                spec.labels.insert(name.to_owned(), "prod".to_owned());
            }
            job
        };
        cache.put(&reads, &with(None, None), answer("s", "cheap"));
        assert!(cache.get(&with(Some(5000.0), None), at(0)).is_none());
        for name in ["env", "Env", "env ", "e\u{200b}nv"] {
            assert!(
                cache.get(&with(None, Some(name)), at(0)).is_none(),
                "{name:?}"
            );
        }
        cache.put(&reads, &with(None, Some("env")), answer("s", "prod"));
        assert!(cache.get(&with(None, Some("ENV")), at(0)).is_some());
    }

    #[test]
    fn only_while_the_snapshot_is_confirmed() {
        let mut cache = Cache::new(100);
        let (reads, job) = (reads(&["topic"]), job("job.a", "x"));
        cache.put(&reads, &job, answer("s1", "r"));
        assert!(cache.get(&job, at(0)).is_none(), "never confirmed");
        cache.confirm_snapshot("s1", at(0));
        cache.put(&reads, &job, answer("s1", "r"));
        assert!(cache.get(&job, at(1000)).is_some());
        assert!(cache.get(&job, at(1001)).is_none(), "too long ago");
        cache.confirm_snapshot("s1", at(1500));
        assert!(cache.get(&job, at(2000)).is_some(), "confirmed again");
        cache.confirm_snapshot("s0", at(1400));
        assert!(cache.get(&job, at(2000)).is_some(), "older news");
        cache.confirm_snapshot("s2", at(2000));
        assert!(cache.get(&job, at(2000)).is_none(), "replaced");
        cache.put(&reads, &job, answer("s1", "r"));
        assert!(
            cache.get(&job, at(2000)).is_none(),
            "an answer that came late"
        );
        cache.confirm_snapshot("s1", at(2100));
        assert!(cache.get(&job, at(2100)).is_none(), "s1 came back empty");
    }

    #[test]
    fn what_is_used_stays_and_it_never_grows_beyond_its_limit() {
        let mut cache = Cache::new(100);
        cache.confirm_snapshot("s", at(0));
        let reads = reads(&["topic", "labels.customer"]);
        let hot = job("job.a", "hot");
        cache.put(&reads, &hot, answer("s", "r"));
        for i in 0..1_000 {
            cache.put(&reads, &job("job.a", &i.to_string()), answer("s", "r"));
            assert!(cache.get(&hot, at(1)).is_some(), "after {i}");
            assert!(cache.len() <= 100, "{}", cache.len());
        }
        assert!(cache.get(&job("job.a", "0"), at(1)).is_none());
    }

    #[test]
    fn values_do_not_run_into_each_other() {
        let mut cache = Cache::new(100);
        cache.confirm_snapshot("s", at(0));
        let reads = reads(&["risk_tags", "requires"]);
        let with = |tags: &[&str], requires: &[&str]| {
            let mut job = job("job.a", "x");
            let spec = Arc::make_mut(&mut job.spec);
            spec.risk_tags = tags.iter().map(|t| (*t).to_owned()).collect();
            spec.requires = requires.iter().map(|t| (*t).to_owned()).collect();
            job
        };
        cache.put(&reads, &with(&["ab"], &["c"]), answer("s", "r"));
        for other in [
            with(&["a"], &["bc"]),
            with(&["ab", "c"], &[]),
            with(&[], &["ab", "c"]),
            with(&["a", "b"], &["c"]),
        ] {
            assert!(cache.get(&other, at(0)).is_none());
        }
    }
}
