//! How the model's types look to Postgres: timestamps without a date library in
//! between, because both sides count microseconds.

use airlock_model::Timestamp;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

/// Microseconds from the Unix epoch to Postgres's, the first of January 2000.
const PG_EPOCH_US: i64 = 946_684_800_000_000;

/// A `timestamptz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ts(pub Timestamp);

impl Ts {
    pub fn from_option(ts: Option<Timestamp>) -> Option<Self> {
        ts.map(Self)
    }
}

impl From<Ts> for Timestamp {
    fn from(ts: Ts) -> Timestamp {
        ts.0
    }
}

impl Type<Postgres> for Ts {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("timestamptz")
    }
}

impl PgHasArrayType for Ts {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("_timestamptz")
    }
}

impl Encode<'_, Postgres> for Ts {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let us = self.0.0.saturating_sub(PG_EPOCH_US);
        <i64 as Encode<Postgres>>::encode_by_ref(&us, buf)
    }
}

impl<'r> Decode<'r, Postgres> for Ts {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => {
                let us = i64::from_be_bytes(value.as_bytes()?.try_into()?);
                Ok(Self(Timestamp(us.saturating_add(PG_EPOCH_US))))
            }
            PgValueFormat::Text => Err("timestamps are only read in binary form".into()),
        }
    }
}
