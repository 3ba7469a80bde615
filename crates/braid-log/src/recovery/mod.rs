//! Recovery: scan all lanes, find the cut, replay in parallel, begin a new incarnation.

mod cut;
pub(crate) mod files;
pub(crate) mod reader;
pub(crate) mod recovered;
mod replay;
mod salvage;
mod scan;
