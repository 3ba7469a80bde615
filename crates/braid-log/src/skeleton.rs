//! Signatures of the log, not implemented yet.
#![allow(missing_docs, unused_variables, dead_code)]

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use braid_io::Device;

use crate::{LogError, LogOptions, LogStart, LogStats};

#[derive(Clone, Copy, Debug)]
pub struct ScanProgress {
    /// Bytes scanned so far.
    pub bytes: u64,
    /// Bytes to scan at most.
    pub total: u64,
}

/// One transaction's piece: `number` is its commit number, the last of its `records` numbers.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    pub number: u64,
    pub records: u32,
    pub payload: &'a [u8],
}

#[derive(Clone, Debug)]
pub struct Log(Arc<()>);

impl Log {
    pub fn create(device: Arc<dyn Device>, options: LogOptions) -> Result<Log, LogError> {
        unimplemented!()
    }
    pub fn recover(
        device: Arc<dyn Device>,
        options: LogOptions,
        start: &LogStart,
        progress: &(dyn Fn(ScanProgress) + Sync),
    ) -> Result<Recovered, LogError> {
        unimplemented!()
    }
    pub fn horizon(&self) -> u64 {
        unimplemented!()
    }
    pub fn last_number(&self) -> u64 {
        unimplemented!()
    }
    pub fn enter(&self, payload_bytes: usize) -> Result<InFlight<'_>, LogError> {
        unimplemented!()
    }
    pub fn append(&self, payload: &[&[u8]]) -> Result<Ticket, LogError> {
        unimplemented!()
    }
    pub fn ticket(&self, number: u64) -> Ticket {
        unimplemented!()
    }
    pub fn sync(&self) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn request_flush(&self) {
        unimplemented!()
    }
    pub fn applied_before(&self) -> u64 {
        unimplemented!()
    }
    pub fn wait_applied(&self, below: u64) {
        unimplemented!()
    }
    pub fn quiesce<R>(&self, f: impl FnOnce(LogStart) -> R) -> R {
        unimplemented!()
    }
    pub fn release(&self, start: &LogStart) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn poisoned(&self) -> Option<String> {
        unimplemented!()
    }
    pub fn options(&self) -> &LogOptions {
        unimplemented!()
    }
    pub fn stats(&self) -> LogStats {
        unimplemented!()
    }
    pub fn close(self) -> Result<(), LogError> {
        unimplemented!()
    }
}

#[derive(Debug)]
pub struct Recovered {
    pub cut: u64,
}

impl Recovered {
    pub fn start(&self) -> &LogStart {
        unimplemented!()
    }
    /// Calls `f` for every piece with start.number < number <= cut, on `threads` threads, in no order.
    pub fn for_each_parallel<E, F>(&self, threads: usize, f: F) -> Result<(), E>
    where
        E: From<LogError> + Send,
        F: Fn(Piece<'_>) -> Result<(), E> + Sync,
    {
        unimplemented!()
    }
    pub fn scanned_bytes(&self) -> u64 {
        unimplemented!()
    }
    pub fn chunks(&self) -> u64 {
        unimplemented!()
    }
    pub fn discarded_pieces(&self) -> u64 {
        unimplemented!()
    }
    pub fn into_log(self) -> Result<Log, LogError> {
        unimplemented!()
    }
}

#[derive(Debug)]
pub struct InFlight<'a>(PhantomData<&'a Log>);

impl InFlight<'_> {
    pub fn draw(&mut self, records: u32) -> u64 {
        unimplemented!()
    }
    pub fn append(&mut self, payload: &[&[u8]]) {
        unimplemented!()
    }
    pub fn void(&mut self) {
        unimplemented!()
    }
    /// The caller will wait for the ticket at once.
    pub fn finish(self) -> Ticket {
        unimplemented!()
    }
    /// The caller won't block: starts the flush.
    pub fn finish_async(self) -> Ticket {
        unimplemented!()
    }
}

#[derive(Debug)]
pub struct Ticket {
    core: Arc<()>,
    number: u64,
}

impl Ticket {
    pub fn number(&self) -> u64 {
        self.number
    }
    pub fn is_durable(&self) -> bool {
        unimplemented!()
    }
    pub fn try_wait(&self) -> Option<Result<(), LogError>> {
        unimplemented!()
    }
    pub fn wait(&self) -> Result<(), LogError> {
        unimplemented!()
    }
    pub fn on_durable(self, f: impl FnOnce(Result<(), LogError>) + Send + 'static) {
        unimplemented!()
    }
}

impl Future for Ticket {
    type Output = Result<(), LogError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        unimplemented!()
    }
}
