//! Positions as text.

use std::str::FromStr;

use braid_log::SeqNo;

use crate::base::position::Position;
use crate::error::{Error, Result};

impl FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (identity, seqno) = text.split_once(':')?;
            Some(Self {
                identity: u128::from_str_radix(identity, 16).ok()?,
                seqno: SeqNo::new(seqno.parse().ok()?),
            })
        };
        parse().ok_or_else(|| Error::Decode {
            type_name: "Position",
            reason: format!(
                "{text:?} is not a position; use the text that a position was written as"
            ),
        })
    }
}
