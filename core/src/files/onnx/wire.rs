//! Protocol Buffers' wire format: the fields of a message, one after the other, never past its end.

use std::ops::Range;

/// A field's value. Bytes are named by their place in the file, so that they can be used there.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Varint(u64),
    Fixed(u64),
    Bytes(Range<usize>),
}

/// The fields of the message that lies in a range of a file.
pub(super) struct Fields<'a> {
    file: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Fields<'a> {
    /// Over a range that lies in `file`.
    pub(super) fn new(file: &'a [u8], range: Range<usize>) -> Self {
        Self { file, at: range.start, end: range.end }
    }

    /// The next field's number and value; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value)>, String> {
        if self.at == self.end {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed(self.fixed(8)?),
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed(self.fixed(4)?),
            other => return Err(format!("a field at byte {} has the wire type {other}, which is not read", self.at)),
        };
        match tag >> 3 {
            0 => Err(format!("a field at byte {} has the number 0", self.at)),
            number => Ok(Some((number, value))),
        }
    }

    /// The next of numbers without tags; none at the end.
    pub(super) fn packed(&mut self) -> Result<Option<u64>, String> {
        if self.at == self.end { Ok(None) } else { self.varint().map(Some) }
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let range = self.take(1)?;
            let byte = self.file[range.start];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(format!("a number at byte {} is longer than ten bytes", self.at))
    }

    fn fixed(&mut self, bytes: u64) -> Result<u64, String> {
        let range = self.take(bytes)?;
        Ok(self.file[range].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn take(&mut self, count: u64) -> Result<Range<usize>, String> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.end - self.at);
        let count = count.ok_or_else(|| format!("a field at byte {} runs past the end of its message", self.at))?;
        self.at += count;
        Ok(self.at - count..self.at)
    }
}

impl Value {
    /// The range of a string, of bytes or of a message.
    pub(super) fn bytes(self, what: &str) -> Result<Range<usize>, String> {
        match self {
            Self::Bytes(range) => Ok(range),
            _ => Err(format!("{what} is no run of bytes")),
        }
    }

    /// A number.
    pub(super) fn number(&self, what: &str) -> Result<u64, String> {
        match self {
            Self::Varint(value) => Ok(*value),
            _ => Err(format!("{what} is no number")),
        }
    }

    /// The numbers of a repeated field: one, or many packed.
    pub(super) fn numbers(self, file: &[u8], what: &str, out: &mut Vec<u64>) -> Result<(), String> {
        match self {
            Self::Varint(value) => out.push(value),
            Self::Bytes(range) => {
                let mut fields = Fields::new(file, range);
                while let Some(value) = fields.packed()? {
                    out.push(value);
                }
            }
            Self::Fixed(_) => return Err(format!("{what} is no number")),
        }
        Ok(())
    }
}

/// The text that lies in a range of the file.
pub(super) fn text<'a>(file: &'a [u8], range: Range<usize>, what: &str) -> Result<&'a str, String> {
    std::str::from_utf8(&file[range]).map_err(|_| format!("{what} is not UTF-8"))
}
