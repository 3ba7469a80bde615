//! What a controller and a namespace say about themselves (the Identify command).

/// Length of the data of an Identify command.
pub(crate) const IDENTIFY_LEN: usize = 4096;

/// Value of the field CNS that asks for the namespace.
pub(crate) const CNS_NAMESPACE: u32 = 0;

/// Value of the field CNS that asks for the controller.
pub(crate) const CNS_CONTROLLER: u32 = 1;

/// Properties of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Controller {
    /// Serial number.
    pub serial: String,
    /// Model name.
    pub model: String,
    /// Revision of the firmware.
    pub firmware: String,
    /// Largest transfer, in powers of two of the smallest page size; 0 means no limit.
    pub transfer_shift: u8,
    /// Whether completed writes may be in a cache that loses them in a power failure.
    pub volatile_cache: bool,
    /// Blocks that a power failure does not tear when they are written at once.
    pub atomic_write_blocks: u32,
    /// Number of Abort commands that may be in flight.
    pub aborts: u16,
    /// Whether the controller knows the command Dataset Management (deallocate).
    pub deallocates: bool,
}

/// Properties of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Namespace {
    /// Number of blocks.
    pub blocks: u64,
    /// Binary logarithm of the block size.
    pub block_shift: u8,
    /// Bytes of metadata of each block.
    pub metadata: u16,
    /// Blocks that a power failure does not tear, if the namespace differs from its controller.
    pub atomic_write_blocks: Option<u32>,
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([data[at], data[at + 1]])
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data)
        .trim_end_matches([' ', '\0'])
        .chars()
        .map(|char| if char.is_control() { '?' } else { char })
        .collect()
}

impl Controller {
    /// Parses the data structure of a controller.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(data: &[u8]) -> Result<Self, &'static str> {
        if data.len() < IDENTIFY_LEN {
            return Err("its description is too short");
        }
        if data[512] & 0xf != 6 {
            return Err("its commands do not have 64 bytes");
        }
        Ok(Self {
            serial: text(&data[4..24]),
            model: text(&data[24..64]),
            firmware: text(&data[64..72]),
            transfer_shift: data[77],
            volatile_cache: data[525] & 1 != 0,
            atomic_write_blocks: u32::from(u16_at(data, 528)) + 1,
            aborts: u16::from(data[258]) + 1,
            deallocates: u16_at(data, 520) & 4 != 0,
        })
    }

    /// Returns the largest transfer in bytes, for pages of `page` bytes.
    pub(crate) fn max_transfer(&self, page: usize) -> usize {
        match self.transfer_shift {
            0 => usize::MAX,
            shift => page.checked_shl(shift.into()).unwrap_or(usize::MAX),
        }
    }
}

impl Namespace {
    /// Parses the data structure of a namespace.
    ///
    /// # Errors
    ///
    /// What is wrong with it, or what Braid does not support.
    pub fn parse(data: &[u8]) -> Result<Self, &'static str> {
        if data.len() < IDENTIFY_LEN {
            return Err("its description is too short");
        }
        let blocks = u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
        if blocks == 0 {
            return Err("it has no blocks, or is not attached");
        }
        let format = usize::from(data[26] & 0xf) | usize::from(data[26] >> 5 & 3) << 4;
        if format > usize::from(data[25]) {
            return Err("its format is not in its list of formats");
        }
        let at = 128 + 4 * format;
        let (metadata, block_shift) = (u16_at(data, at), data[at + 2]);
        if !(9..=16).contains(&block_shift) {
            return Err("its blocks have less than 512 bytes, or more than 64 KiB");
        }
        if blocks > u64::MAX >> block_shift {
            return Err("it claims more than 2^64 bytes");
        }
        let of_its_own = data[24] & 2 != 0;
        Ok(Self {
            blocks,
            block_shift,
            metadata,
            atomic_write_blocks: of_its_own.then(|| u32::from(u16_at(data, 36)) + 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let data: Vec<u8> = (0..IDENTIFY_LEN).map(|_| random.u8(..)).collect();
            let _ = Controller::parse(&data);
            if let Ok(namespace) = Namespace::parse(&data) {
                assert!(
                    namespace
                        .blocks
                        .checked_mul(1 << namespace.block_shift)
                        .is_some()
                );
            }
        }
        assert!(Controller::parse(&[0; 100]).is_err());
        assert!(Controller::parse(&[0; IDENTIFY_LEN]).is_err());
        assert!(Namespace::parse(&[0; IDENTIFY_LEN]).is_err());
        assert!(Namespace::parse(&[0; 8]).is_err());
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let mut data = vec![0; IDENTIFY_LEN];
        data[4..24].copy_from_slice(b"S123                ");
        data[24..64].fill(b' ');
        data[24..29].copy_from_slice(b"Model");
        data[77] = 5;
        data[258] = 3;
        data[512] = 0x66;
        data[520] = 4;
        data[525] = 1;
        data[528] = 7;
        let controller = Controller::parse(&data).unwrap();
        assert_eq!((&*controller.serial, &*controller.model), ("S123", "Model"));
        assert_eq!(controller.max_transfer(4096), 128 << 10);
        assert!(controller.volatile_cache && controller.deallocates);
        assert_eq!((controller.atomic_write_blocks, controller.aborts), (8, 4));

        let mut data = vec![0; IDENTIFY_LEN];
        data[..8].copy_from_slice(&1000u64.to_le_bytes());
        data[24] = 2;
        data[25] = 1;
        data[26] = 1;
        data[36] = 15;
        data[128 + 4 + 2] = 12;
        let namespace = Namespace::parse(&data).unwrap();
        assert_eq!((namespace.blocks, namespace.block_shift), (1000, 12));
        assert_eq!(namespace.atomic_write_blocks, Some(16));
    }
}
