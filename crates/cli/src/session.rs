//! What every command that asks the API shares: the client, where answers go, and how a
//! failure becomes an exit code.

use airlock_client::{Client, ClientError};
use secrecy::ExposeSecret;
use serde::Serialize;

use crate::args;
use crate::connect::Target;
use crate::exit::Exit;
use crate::explain::{Explained, explain_error};
use crate::payload;
use crate::render::RenderContext;
use crate::terminal::Terminal;

/// A person waits, so that only what passes by itself within a second is waited for.
const MAX_RETRIES: usize = 3;

/// Why there is no answer.
pub enum Failure {
    Client(ClientError),
    Explained(Explained),
}

impl Failure {
    /// The request is wrong.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Explained(Explained {
            text: text.into(),
            hint: None,
            exit: Exit::Usage,
        })
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<payload::PayloadError> for Failure {
    fn from(error: payload::PayloadError) -> Self {
        Self::usage(error.to_string())
    }
}

pub type CommandResult = Result<Exit, Failure>;

pub struct Session {
    pub client: Client,
    pub terminal: Terminal,
    pub json: bool,
}

/// Opens a session, lets `act` use it, and reports how that went.
pub fn run_with_session<F>(
    api: args::Api,
    terminal: Terminal,
    act: impl FnOnce(Session) -> F,
) -> Exit
where
    F: Future<Output = CommandResult>,
{
    let folder = std::env::current_dir().unwrap_or_default();
    let target = Target::resolve(api.url, api.api_key, &folder);
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal.error(&format!("starting the runtime: {error}"));
            return Exit::Unreachable;
        }
    };
    let result = Session::open(&target, terminal, api.json)
        .and_then(|session| runtime.block_on(act(session)));
    match result {
        Ok(exit) => exit,
        Err(Failure::Client(error)) => explain_error(&error, &target).print(terminal),
        Err(Failure::Explained(explained)) => explained.print(terminal),
    }
}

impl Session {
    fn open(target: &Target, terminal: Terminal, json: bool) -> Result<Self, Failure> {
        // Without a key the API is asked all the same: it knows whether it needs one.
        let key = target.key.as_ref().map_or("", |key| key.expose_secret());
        Ok(Self {
            client: Client::new(&target.url, key)?.with_retries(MAX_RETRIES),
            terminal,
            json,
        })
    }

    pub fn render_context(&self) -> RenderContext {
        RenderContext::from_system(self.terminal.out)
    }

    pub fn print_json(&self, value: &impl Serialize) -> CommandResult {
        match serde_json::to_string_pretty(value) {
            Ok(text) => {
                self.terminal.print(&text);
                Ok(Exit::Done)
            }
            Err(error) => Err(Failure::Explained(Explained {
                text: format!("writing JSON: {error}"),
                hint: None,
                exit: Exit::Failed,
            })),
        }
    }
}
