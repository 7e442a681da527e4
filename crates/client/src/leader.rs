//! The schedulers' leader: who it is, and asking it to hand over.

use airlock_api::{LeaderStatus, StepDownResponse};
use reqwest::Method;

use crate::client::{CALL_TIMEOUT, Client, send_and_decode};
use crate::error::ClientError;

impl Client {
    pub async fn leader(&self) -> Result<LeaderStatus, ClientError> {
        self.get_json("/api/v1/leader").await
    }

    /// Asks the leader to hand over. Not repeated: the next leader would be asked too.
    pub async fn step_down(&self) -> Result<StepDownResponse, ClientError> {
        let path = "/api/v1/leader/step-down";
        send_and_decode(self.request_builder(Method::POST, path, CALL_TIMEOUT)).await
    }
}
