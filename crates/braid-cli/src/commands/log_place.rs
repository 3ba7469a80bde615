//! Where the log of a database is, if it is not with the data.

use std::path::PathBuf;

use braid::Builder;
use braid::backup::Restore;
use braid::device::DeviceChoice;

use crate::numbers::parse;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct LogPlaceArgs {
    /// Directory of the log, for a new database, or after the directory was moved [default: that of
    /// the database, or the recorded one]
    #[arg(long, value_name = "DIR")]
    pub(crate) log_directory: Option<PathBuf>,

    /// Device of --log-directory: auto, uring, file, pmem, pmem-file or pmem-emulated [default: the
    /// recorded one; for a new database that of the data]
    #[arg(long, value_name = "KIND", value_parser = parse::<DeviceChoice>)]
    pub(crate) log_device: Option<DeviceChoice>,
}

impl LogPlaceArgs {
    pub(crate) fn apply(&self, mut builder: Builder) -> Builder {
        if let Some(directory) = &self.log_directory {
            builder = builder.log_directory(directory);
        }
        match self.log_device {
            Some(device) => builder.log_device(device),
            None => builder,
        }
    }

    pub(crate) fn restore<'a>(&self, mut restore: Restore<'a>) -> Restore<'a> {
        if let Some(directory) = &self.log_directory {
            restore = restore.log_directory(directory);
        }
        match self.log_device {
            Some(device) => restore.log_device(device),
            None => restore,
        }
    }
}
