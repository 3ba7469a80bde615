//! The protocols RESP2 and RESP3: requests, replies, and numbers as text.

mod inline;
pub(crate) mod number;
mod reply;
mod request;
mod spare;

#[cfg(feature = "scripts")]
pub(crate) use inline::split_words;
pub(crate) use reply::{CHANGED_CHANNEL, Notice, Protocol, Reply};
pub(crate) use request::{Limits, ProtocolError, RequestParser};
pub(crate) use spare::reuse;
