//! Rules and requests from a seed, so that every run asks the same.

pub const RULES: usize = 100;
pub const REQUESTS: usize = 1_000;
const SEED: u64 = 0x5afe_9071_c1e5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// The topic begins so.
    TopicPrefix(String),
    Topic(String),
    Tenants(Vec<String>),
    /// Any of these tags.
    RiskTags(Vec<String>),
    Label(String, String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub allow: bool,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub topic: String,
    pub tenant: String,
    pub risk_tags: Vec<String>,
    pub labels: Vec<(String, String)>,
}

/// Xorshift: enough for a sample, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn area(&mut self) -> String {
        let areas = [
            "pay", "mail", "image", "report", "backup", "deploy", "index", "audit",
        ];
        areas[self.next(areas.len() as u64) as usize].to_owned()
    }

    fn tenant(&mut self) -> String {
        format!("tenant-{}", self.next(20))
    }

    fn tag(&mut self) -> String {
        format!("tag-{}", self.next(12))
    }

    fn label(&mut self) -> (String, String) {
        let names = ["env", "region", "team"];
        let name = names[self.next(3) as usize].to_owned();
        (name, format!("value-{}", self.next(4)))
    }
}

/// Refusals first, then permissions.
pub fn rules() -> Vec<Rule> {
    let mut random = Random(SEED);
    (0..RULES)
        .map(|i| {
            let allow = i >= RULES / 2;
            let mut conditions = vec![if random.next(2) == 0 {
                Condition::TopicPrefix(format!("job.{}.", random.area()))
            } else {
                Condition::Topic(format!("job.{}.{}", random.area(), random.next(5)))
            }];
            let more = random.next(3);
            if more != 0 {
                conditions.push(Condition::Tenants(
                    (0..3).map(|_| random.tenant()).collect(),
                ));
            }
            if !allow || more == 2 {
                conditions.push(match random.next(2) {
                    0 => Condition::RiskTags(vec![random.tag(), random.tag()]),
                    _ => {
                        let (name, value) = random.label();
                        Condition::Label(name, value)
                    }
                });
            }
            Rule { allow, conditions }
        })
        .collect()
}

pub fn requests() -> Vec<Ask> {
    let mut random = Random(SEED ^ 0xffff);
    (0..REQUESTS)
        .map(|_| {
            let mut labels: Vec<_> = (0..random.next(3)).map(|_| random.label()).collect();
            labels.sort();
            labels.dedup_by(|a, b| a.0 == b.0);
            Ask {
                topic: format!("job.{}.{}", random.area(), random.next(5)),
                tenant: random.tenant(),
                risk_tags: (0..random.next(3)).map(|_| random.tag()).collect(),
                labels,
            }
        })
        .collect()
}
