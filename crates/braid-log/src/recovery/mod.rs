//! Recovery: scan all lanes, replay meanwhile what is certain, find the cut, replay the rest in
//! parallel, begin a new incarnation.

mod cut;
pub(crate) mod early;
pub(crate) mod files;
pub(crate) mod items;
pub(crate) mod reader;
pub(crate) mod recovered;
mod replay;
mod salvage;
mod scan;
mod side_damage;
mod windows;
