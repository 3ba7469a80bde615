//! Positioned reads and writes of files on Windows, where the standard library offers only the
//! system's own calls.

use std::fs;
use std::io;
use std::os::windows::fs::FileExt;

/// The interface of `std::os::unix::fs::FileExt`.
///
/// Windows moves the file's cursor, which is harmless: nothing in this crate uses the cursor.
pub(crate) trait Positioned {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
}

impl Positioned for fs::File {
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.seek_read(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buf = &mut buf[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.seek_write(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    buf = &buf[written..];
                    offset += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
