//! Operations on the files of a closed database: verification, salvage, upgrade.

pub(crate) mod salvage;
pub(crate) mod upgrade;
pub(crate) mod verify;
