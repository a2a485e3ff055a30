//! Little-endian numbers and strings out of bytes, never past their end.

/// A position in the bytes of a file.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes; `what` names them in the error.
    pub(super) fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], String> {
        match usize::try_from(count).ok().filter(|count| *count <= self.left()) {
            Some(count) => {
                self.at += count;
                Ok(&self.bytes[self.at - count..self.at])
            }
            None => Err(format!("{what} needs {count} bytes at byte {}, {} are left", self.at, self.left())),
        }
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: its length and its bytes.
    pub(super) fn string(&mut self, what: &str) -> Result<&'a [u8], String> {
        let length = self.u64(what)?;
        self.take(length, what)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let bytes = self.take(N as u64, what)?;
        bytes.try_into().map_err(|_| format!("{what} is cut"))
    }
}
