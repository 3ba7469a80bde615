//! Recovery: scan all lanes, find the cut, replay in parallel, begin a new incarnation.

pub(crate) mod reader;
pub(crate) mod recovered;
pub(crate) mod salvage;
pub(crate) mod scan;
