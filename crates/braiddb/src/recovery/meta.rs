//! Options stored with a database, and those requested by an open.

use braid_log::LogOptions;
use braid_rt::narrow;

use crate::error::{Error, Result};
use crate::format::meta::Meta;
use crate::options::Builder;

/// Applies the options that an open may change: the protocol and the number of strands. Returns
/// whether the protocol changes.
pub(super) fn apply_options(options: &Builder, meta: &mut Meta) -> Result<bool> {
    check_fixed_options(options, meta)?;
    let switched = switch_protocol(options, meta)?;
    set_strands(options, meta)?;
    Ok(switched)
}

/// Checks that the requested options match those that the database was created with.
fn check_fixed_options(options: &Builder, meta: &Meta) -> Result<()> {
    let mismatch = |option: &str, asked: String, found: String| {
        Err(Error::Incompatible {
            what: format!(
                "cannot open the database with {option} {asked}: it was created with {found}; leave the option out"
            ),
        })
    };
    if let Some(asked) = options.lanes
        && asked != usize::from(meta.lanes)
    {
        return mismatch("lanes", asked.to_string(), meta.lanes.to_string());
    }
    Ok(())
}

/// Applies the requested protocol. Returns whether it differs from the stored one.
fn switch_protocol(options: &Builder, meta: &mut Meta) -> Result<bool> {
    let Some(asked) = options.protocol.filter(|&asked| asked != meta.protocol) else {
        return Ok(false);
    };
    match asked.forced_strands() {
        Some(strands) if strands < usize::from(meta.lanes) => {
            return Err(Error::Incompatible {
                what: format!(
                    "cannot switch to protocol {asked}, which uses one lane: the database has {} lanes; keep the protocol {}",
                    meta.lanes, meta.protocol
                ),
            });
        }
        Some(strands) => meta.strands = narrow(strands),
        None if meta.protocol.forced_strands().is_some() => {
            meta.strands = narrow(LogOptions::default().strands);
        }
        None => {}
    }
    meta.protocol = asked;
    Ok(true)
}

fn set_strands(options: &Builder, meta: &mut Meta) -> Result<()> {
    let Some(strands) = options.strands else {
        return Ok(());
    };
    if meta.protocol.forced_strands().is_some() {
        return Ok(());
    }
    if strands < usize::from(meta.lanes) {
        return Err(Error::InvalidOption {
            option: "strands",
            reason: format!(
                "{strands} given; the database has {} lanes and needs at least as many",
                meta.lanes
            ),
        });
    }
    if usize::from(meta.strands) != strands {
        braid_rt::coverage_point("opening: another number of strands");
    }
    meta.strands = narrow(strands);
    Ok(())
}
