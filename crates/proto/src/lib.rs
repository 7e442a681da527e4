//! The wire: the Cordum Agent Protocol's messages ([`cap`]), Airlock's own
//! ([`own`]), the envelope
//! both travel in ([`packet`]), its signature ([`signing`]), the trace context beside it
//! ([`trace`]), the question to the safety kernel ([`policy_check`]), the terms of a
//! decision ([`terms`]), and speculative submissions ([`ahead`]). [`etcd`] is what leader
//! election may say to a coordinator.
//!
//! Everything on the bus is a [`cap::BusPacket`]. [`packet::encode`] makes one that any
//! CAP peer accepts and [`packet::decode`] holds what we receive to the same rules, so
//! that no service has rules of its own.

#![expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    reason = "generated code"
)]

pub mod ahead;
pub mod packet;
pub mod policy_check;
pub mod signing;
pub mod terms;
pub mod trace;

pub mod cordum {
    //! Package `cordum.agent.v1`, at the path generated code refers to it by.
    pub mod agent {
        pub mod v1 {
            tonic::include_proto!("cordum.agent.v1");
        }
    }
}

pub mod airlock {
    //! Package `airlock.v1`.
    pub mod v1 {
        tonic::include_proto!("airlock.v1");
    }
}

pub mod etcd {
    //! Package `etcdserverpb`: as much of etcd's interface as the election uses.
    tonic::include_proto!("etcdserverpb");
}

pub use airlock::v1 as own;
pub use cordum::agent::v1 as cap;
