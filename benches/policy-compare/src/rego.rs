//! Rego, compiled to the bytecode of regorus' virtual machine.

use std::fmt::Write as _;

use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::vm::RegoVM;
use regorus::{Engine as Regorus, Rc, Value};
use serde_json::json;

use crate::{Ask, Condition, Engine, Rule};

const ENTRY: &str = "data.airlock.allow";

pub struct Rego {
    vm: RegoVM,
    requests: Vec<Value>,
}

impl Rego {
    pub fn new(rules: &[Rule], requests: &[Ask]) -> Self {
        let mut engine = Regorus::new();
        engine
            .add_policy("airlock.rego".to_owned(), module(rules))
            .expect("a sound module");
        let entry: Rc<str> = ENTRY.into();
        let compiled = engine.compile_with_entrypoint(&entry).expect("it compiles");
        let program = Compiler::compile_from_policy(&compiled, &[ENTRY]).expect("to bytecode");
        let mut vm = RegoVM::new();
        vm.load_program(program);
        Self {
            vm,
            requests: requests.iter().map(request).collect(),
        }
    }
}

impl Engine for Rego {
    fn name(&self) -> &'static str {
        "regorus"
    }

    fn allows(&mut self, request: usize) -> bool {
        // A value is a reference count inside, so this copies nothing.
        self.vm.set_input(self.requests[request].clone());
        self.vm.execute().expect("an answer") == Value::from(true)
    }
}

fn module(rules: &[Rule]) -> String {
    let mut text =
        "package airlock\nimport rego.v1\ndefault allow := false\ndefault refused := false\n"
            .to_owned();
    text += "allow if { not refused; permitted }\ndefault permitted := false\n";
    for rule in rules {
        let head = if rule.allow { "permitted" } else { "refused" };
        let quoted = |words: &[String]| {
            let words: Vec<_> = words.iter().map(|w| format!("\"{w}\"")).collect();
            words.join(", ")
        };
        let conditions: Vec<String> = rule
            .conditions
            .iter()
            .map(|c| match c {
                Condition::TopicPrefix(prefix) => format!("startswith(input.topic, \"{prefix}\")"),
                Condition::Topic(topic) => format!("input.topic == \"{topic}\""),
                Condition::Tenants(tenants) => format!("input.tenant in {{{}}}", quoted(tenants)),
                Condition::RiskTags(tags) => {
                    format!("some tag in input.risk_tags; tag in {{{}}}", quoted(tags))
                }
                Condition::Label(name, value) => format!("input.labels.{name} == \"{value}\""),
            })
            .collect();
        let _ = writeln!(text, "{head} if {{ {} }}", conditions.join("; "));
    }
    text
}

fn request(ask: &Ask) -> Value {
    let labels: serde_json::Map<_, _> = ask
        .labels
        .iter()
        .map(|(n, v)| (n.clone(), json!(v)))
        .collect();
    let text = json!({
        "topic": ask.topic,
        "tenant": ask.tenant,
        "risk_tags": ask.risk_tags,
        "labels": labels,
    });
    Value::from_json_str(&text.to_string()).expect("a value")
}
