//! Processors without a known instruction. [`super::Flusher`] is never created here.

use std::sync::atomic::AtomicU64;

use super::{FlushMethod, Unsupported};

pub(super) fn detect() -> Result<(FlushMethod, usize), Unsupported> {
    Err(Unsupported)
}

pub(super) fn flush_line(_: FlushMethod, _: &AtomicU64) {}

pub(super) fn fence(_: FlushMethod) {}

pub(super) fn store_around_cache(_: &[AtomicU64], _: &[u8]) -> bool {
    false
}
