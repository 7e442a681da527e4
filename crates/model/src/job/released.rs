//! Proof that output may be read.

/// Output that whoever may see the job may read. The readable result of a job is this and
/// nothing else, in the ledger's writes and in its views; what an output policy withholds
/// has no such value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released<T>(T);

impl<T> Released<T> {
    /// Output of an installation in which no output policy withholds anything.
    pub fn without_output_policy(output: T) -> Self {
        Self(output)
    }

    /// Output as the ledger has it: it was released when it was written.
    pub fn from_ledger(output: T) -> Self {
        Self(output)
    }

    pub fn get(&self) -> &T {
        &self.0
    }

    pub fn into_inner(self) -> T {
        self.0
    }
}
