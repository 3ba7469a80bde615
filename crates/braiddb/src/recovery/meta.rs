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

#[cfg(test)]
mod tests {
    use braid_log::ProtocolKind;

    use super::*;

    /// Opens a database that has these properties.
    fn open(options: &Builder, (protocol, strands, lanes): Stored) -> Result<(Stored, bool)> {
        let mut meta = Meta {
            protocol,
            strands,
            lanes,
        };
        let switched = apply_options(options, &mut meta)?;
        Ok(((meta.protocol, meta.strands, meta.lanes), switched))
    }

    type Stored = (ProtocolKind, u16, u16);

    const GSN: ProtocolKind = ProtocolKind::Gsn;
    const GWSN: ProtocolKind = ProtocolKind::Gwsn;
    const SERIAL: ProtocolKind = ProtocolKind::Serial;

    #[test]
    fn the_number_of_strands_changes_if_the_protocol_has_several() {
        let same = open(&Builder::default(), (GSN, 4, 2)).unwrap();
        assert_eq!(same, ((GSN, 4, 2), false));
        for strands in [2, 6] {
            let opened = open(&Builder::default().strands(strands), (GSN, 4, 2)).unwrap();
            assert_eq!(opened, ((GSN, narrow(strands), 2), false));
        }
        let fewer_than_lanes = open(&Builder::default().strands(1), (GSN, 4, 2));
        let Err(Error::InvalidOption { option, .. }) = fewer_than_lanes else {
            panic!("{fewer_than_lanes:?}");
        };
        assert_eq!(option, "strands");
        let one = open(&Builder::default().strands(6), (SERIAL, 1, 1)).unwrap();
        assert_eq!(one, ((SERIAL, 1, 1), false));
    }

    #[test]
    fn another_protocol_keeps_the_strands_if_it_can() {
        let to = |protocol| Builder::default().protocol(protocol);
        let same = open(&to(GSN), (GSN, 6, 2)).unwrap();
        assert_eq!(same, ((GSN, 6, 2), false));
        let kept = open(&to(GWSN), (GSN, 6, 2)).unwrap();
        assert_eq!(kept, ((GWSN, 6, 2), true));
        let one = open(&to(SERIAL), (GSN, 6, 1)).unwrap();
        assert_eq!(one, ((SERIAL, 1, 1), true));
        let strands = narrow(LogOptions::default().strands);
        let many = open(&to(GSN), (SERIAL, 1, 1)).unwrap();
        assert_eq!(many, ((GSN, strands, 1), true));
        let lanes = open(&to(SERIAL), (GSN, 6, 2));
        assert!(matches!(lanes, Err(Error::Incompatible { .. })));
    }

    #[test]
    fn the_number_of_lanes_is_fixed() {
        let open = |lanes| open(&Builder::default().lanes(lanes), (GSN, 4, 2));
        assert_eq!(open(2).unwrap(), ((GSN, 4, 2), false));
        assert!(matches!(open(3), Err(Error::Incompatible { .. })));
    }
}
