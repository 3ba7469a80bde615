//! The protocols RESP2 and RESP3: requests, replies, and numbers as text.

mod inline;
pub(crate) mod number;
mod reply;
mod request;
mod spare;

pub(crate) use reply::{CHANGED_CHANNEL, Notice, Protocol, Reply};
#[cfg(feature = "fuzzing")]
pub(crate) use request::ProtocolError;
pub(crate) use request::{Limits, RequestParser};
pub(crate) use spare::reuse;
