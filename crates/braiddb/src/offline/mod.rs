//! Operations on the files of a closed database: verification, salvage, upgrade, restore.

pub(crate) mod restore;
pub(crate) mod salvage;
pub(crate) mod upgrade;
pub(crate) mod verify;

pub use salvage::{Finding, Salvage, SalvageReport, salvage};
pub use upgrade::{UpgradeReport, upgrade};
pub use verify::{Verify, VerifyReport, dump, verify};
