//! What a drive contains that is no volume: partitions, file systems, data of other programs.

use super::VolumeError;
use super::medium::Medium;

/// Something that is recognised by bytes at a place.
struct Signature {
    name: &'static str,
    at: usize,
    magic: &'static [u8],
}

/// The signatures that are looked for in the first 128 KiB.
const SIGNATURES: [Signature; 19] = [
    sign("a GPT partition table", 512, b"EFI PART"),
    sign("a GPT partition table", 4096, b"EFI PART"),
    sign("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    sign("an XFS file system", 0, b"XFSB"),
    sign("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    sign("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    sign("an NTFS file system", 3, b"NTFS    "),
    sign("an exFAT file system", 3, b"EXFAT   "),
    sign("a FAT file system", 54, b"FAT"),
    sign("a FAT file system", 82, b"FAT32"),
    sign("an LVM physical volume", 512, b"LABELONE"),
    sign("a LUKS volume", 0, b"LUKS\xba\xbe"),
    sign("swap space", 4086, b"SWAPSPACE2"),
    sign("swap space", 65526, b"SWAPSPACE2"),
    sign("a member of a RAID", 4096, b"\xfc\x4e\x2b\xa9"),
    sign("a member of a RAID", 0, b"\xfc\x4e\x2b\xa9"),
    sign("an EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    sign("a SquashFS file system", 0, b"hsqs"),
    sign(
        "a bcachefs file system",
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9",
    ),
];

/// Bytes at the start of a drive that are looked at.
const HEAD: u64 = 128 << 10;

const fn sign(name: &'static str, at: usize, magic: &'static [u8]) -> Signature {
    Signature { name, at, magic }
}

/// Returns the name of what the start of a drive shows, apart from a volume of Braid.
pub(super) fn recognise(head: &[u8]) -> Option<&'static str> {
    let has = |signature: &&Signature| {
        head.get(signature.at..)
            .is_some_and(|from| from.starts_with(signature.magic))
    };
    if let Some(found) = SIGNATURES.iter().find(has) {
        return Some(found.name);
    }
    // A table of four partitions, of which one is in use. The mark alone is on boot sectors, too.
    let is_marked = head.get(510..512) == Some(&[0x55, 0xaa]);
    let mut kinds = (0..4).map(|i| head.get(446 + 16 * i + 4).copied().unwrap_or(0));
    if is_marked && kinds.any(|kind| kind != 0) {
        return Some("an MBR partition table");
    }
    is_marked.then_some("a boot sector")
}

/// Reads the start of a drive.
pub(super) fn head(medium: &Medium) -> Result<Vec<u8>, VolumeError> {
    let block = super::medium::BLOCK;
    let len = HEAD.min(medium.bytes() / block * block);
    let mut head = vec![0; braid_rt::to_usize(len)];
    medium.read(0, &mut head)?;
    Ok(head)
}

/// Returns what a drive without a volume contains, for error messages.
pub(super) fn describe(medium: &Medium) -> Result<String, VolumeError> {
    let head = head(medium)?;
    Ok(match recognise(&head) {
        Some(found) => format!("it contains {found}"),
        None if head.iter().all(|byte| *byte == 0) => "it begins with zeros".into(),
        None => "it contains something unknown".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_recognised() {
        for signature in &SIGNATURES {
            let mut head = vec![0; braid_rt::to_usize(HEAD)];
            assert_eq!(recognise(&head), None);
            head[signature.at..][..signature.magic.len()].copy_from_slice(signature.magic);
            assert_eq!(recognise(&head), Some(signature.name));
            let end = signature.at + signature.magic.len();
            assert_eq!(recognise(&head[..end - 1]), None, "{}", signature.name);
        }
        let mut head = vec![0; 512];
        head[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(recognise(&head), Some("a boot sector"));
        head[446 + 16 + 4] = 0x83;
        assert_eq!(recognise(&head), Some("an MBR partition table"));
    }
}
