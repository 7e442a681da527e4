//! An agent that calls tools, within what the policy allows, after somebody approved.
//!
//! ```text
//! cargo run -p airlock-worker --example tool-caller
//! airlock job submit job.agent.tool --risk-tag tool-use \
//!   --payload '{"goal":"find airlock"}'
//! ```
//!
//! Neither the approval nor the limits are the worker's: the policy says that jobs with
//! this risk tag need one, and under which constraints they run then. The job stays
//! APPROVAL_REQUIRED until somebody approves it, and is dispatched here only afterwards,
//! with its constraints. What is left to the worker is to keep to them: it asks
//! `ctx.policy()` before each tool, each command and each file. What it is refused ends
//! the job, is alerted, and stands in its result.

use airlock_worker::{JobContext, JobError, Worker, WorkerError};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Ask {
    goal: String,
}

#[derive(Serialize)]
struct Answer {
    tool: &'static str,
    text: String,
}

/// What a model would say: which tool to call, with what.
struct Call {
    tool: &'static str,
    argument: String,
}

/// Stands for a model, so that the example needs no account anywhere. It is state, as a
/// client of a real one would be.
struct Model;

impl Model {
    async fn choose(&self, goal: &str) -> Result<Call, JobError> {
        let (verb, rest) = goal.split_once(' ').unwrap_or((goal, ""));
        let tool = match verb {
            "find" => "search",
            "read" => "files.read",
            "run" => "shell",
            _ => return Err(JobError::fatal("no_idea", format!("no tool for {goal:?}"))),
        };
        Ok(Call {
            tool,
            argument: rest.to_owned(),
        })
    }
}

async fn handle_ask(ctx: JobContext, ask: Ask) -> Result<Answer, JobError> {
    let call = ctx.state::<Model>()?.choose(&ask.goal).await?;
    ctx.policy().tool(call.tool)?;
    ctx.progress(50, format!("calling {}", call.tool));
    let text = match call.tool {
        "search" => search(&call.argument),
        "files.read" => {
            let path = ctx.policy().read(&call.argument)?;
            tokio::fs::read_to_string(path).await?
        }
        _ => run_command(&ctx, &call.argument).await?,
    };
    Ok(Answer {
        tool: call.tool,
        text,
    })
}

fn search(words: &str) -> String {
    let pages = [
        ("airlock", "a policy-gated job scheduler"),
        ("worker", "a process that handles jobs of some topics"),
    ];
    let found = pages.iter().find(|(name, _)| words.contains(name));
    found.map_or("nothing found", |(_, page)| page).to_owned()
}

/// No shell sees the words, and the command ends with the job.
async fn run_command(ctx: &JobContext, line: &str) -> Result<String, JobError> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let mut command = ctx.policy().command(program)?;
    let output = command.args(words).output().await?;
    if !output.status.success() {
        let words = format!("{program} ended with {}", output.status);
        return Err(JobError::failed(words).with_code("command_failed"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::main]
async fn main() -> Result<(), WorkerError> {
    tracing_subscriber::fmt().init();
    Worker::builder("example-tool-caller")
        .state(Model)
        .on("job.agent.tool", handle_ask)
        .run()
        .await
}
