//! The CRC-64 of Redis: polynomial of Jones, reflected, without inversion.

const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

const TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut word = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 {
                word >> 1 ^ POLYNOMIAL
            } else {
                word >> 1
            };
            bit += 1;
        }
        table[byte] = word;
        byte += 1;
    }
    table
};

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| {
        TABLE[((sum ^ u64::from(*byte)) & 0xff) as usize] ^ sum >> 8
    })
}

#[cfg(test)]
mod tests {
    /// Values that Redis' own test checks.
    #[test]
    fn known_values() {
        assert_eq!(super::checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(super::checksum(b""), 0);
    }
}
