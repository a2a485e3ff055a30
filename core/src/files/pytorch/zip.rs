//! The archive around a state dict: its directory, and where its members lie.
//!
//! Members are used where they are in the mapped file, so only stored ones can be; a member outside the archive's own data
//! is refused, and nothing is ever written anywhere.

use std::collections::BTreeMap;
use std::ops::Range;

const END: [u8; 4] = *b"PK\x05\x06";
const END_64_LOCATOR: [u8; 4] = *b"PK\x06\x07";
const END_64: [u8; 4] = *b"PK\x06\x06";
const ENTRY: [u8; 4] = *b"PK\x01\x02";
const LOCAL: [u8; 4] = *b"PK\x03\x04";
const END_BYTES: usize = 22;
const ENTRY_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
const MAX_COMMENT_BYTES: usize = 0xffff;
/// The extra field with sizes of 64 bits.
const EXTRA_64: u16 = 1;
/// What 32 bits hold where the true value is in the extra field.
const IN_EXTRA: u64 = 0xffff_ffff;

/// The members of an archive.
pub(super) struct Archive<'a> {
    file: &'a [u8],
    members: BTreeMap<String, Member>,
    /// Where the directory begins: members lie before it.
    directory: usize,
}

struct Member {
    is_stored: bool,
    bytes: u64,
    header: u64,
}

impl<'a> Archive<'a> {
    pub(super) fn open(file: &'a [u8]) -> Result<Self, String> {
        let end = find_end(file)?;
        let (count, bytes, start) = directory_place(file, end)?;
        let directory = usize::try_from(start).ok().filter(|start| *start <= end);
        let directory = directory.ok_or("the archive's directory begins past its end")?;
        let stop = usize::try_from(bytes).ok().and_then(|bytes| directory.checked_add(bytes));
        let stop = stop.filter(|stop| *stop <= end).ok_or("the archive's directory runs past its end")?;
        if count > ((stop - directory) / ENTRY_BYTES) as u64 {
            return Err(format!("the archive claims {count} members, its directory has {bytes} bytes"));
        }
        let mut members = BTreeMap::new();
        let mut at = directory;
        for _ in 0..count {
            let (name, member, next) = read_entry(file, at, stop)?;
            if members.insert(name.clone(), member).is_some() {
                return Err(format!("the archive has the member `{name}` twice"));
            }
            at = next;
        }
        Ok(Self { file, members, directory })
    }

    /// The names of all members.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Where the bytes of the member `name` are in the file.
    pub(super) fn range(&self, name: &str) -> Result<Range<usize>, String> {
        let member = self.members.get(name).ok_or_else(|| format!("the archive has no member `{name}`"))?;
        if !member.is_stored {
            return Err(format!("the member `{name}` is compressed; only stored ones are read"));
        }
        let outside = || format!("the member `{name}` lies outside the archive's data");
        let header = usize::try_from(member.header).map_err(|_| outside())?;
        let local = header.checked_add(LOCAL_BYTES).and_then(|end| self.file[..self.directory].get(header..end));
        let local = local.filter(|local| local.starts_with(&LOCAL)).ok_or_else(outside)?;
        let start = header + LOCAL_BYTES + usize::from(u16_at(local, 26)) + usize::from(u16_at(local, 28));
        let end = usize::try_from(member.bytes).ok().and_then(|bytes| start.checked_add(bytes));
        end.filter(|end| *end <= self.directory).map(|end| start..end).ok_or_else(outside)
    }
}

/// Where the end record is: the last one that reaches the end of the file with its comment.
fn find_end(file: &[u8]) -> Result<usize, String> {
    let last = file.len().checked_sub(END_BYTES).ok_or("the archive is cut")?;
    let first = last.saturating_sub(MAX_COMMENT_BYTES);
    let is_end = |at: &usize| {
        let comment = usize::from(u16_at(file, at + 20));
        file[*at..].starts_with(&END) && at + END_BYTES + comment == file.len()
    };
    (first..=last).rev().find(is_end).ok_or_else(|| "the archive's end is cut".into())
}

/// Members, bytes and beginning of the directory.
fn directory_place(file: &[u8], end: usize) -> Result<(u64, u64, u64), String> {
    let locator = end.checked_sub(20).filter(|at| file[*at..].starts_with(&END_64_LOCATOR));
    if let Some(at) = locator {
        let record = usize::try_from(u64_at(file, at + 8)).ok();
        let record = record.and_then(|at| file.get(at..at.checked_add(56)?)).filter(|r| r.starts_with(&END_64));
        let record = record.ok_or("the archive's 64-bit end record is not where it is said to be")?;
        return Ok((u64_at(record, 32), u64_at(record, 40), u64_at(record, 48)));
    }
    let record = &file[end..];
    if u16_at(record, 4) != 0 || u16_at(record, 6) != 0 {
        return Err("the archive is a part of several".into());
    }
    Ok((u16_at(record, 10).into(), u32_at(record, 12).into(), u32_at(record, 16).into()))
}

/// A name, its member, and where the next entry begins.
fn read_entry(file: &[u8], at: usize, stop: usize) -> Result<(String, Member, usize), String> {
    let cut = "the archive's directory is cut";
    let head =
        file[..stop].get(at..).filter(|rest| rest.len() >= ENTRY_BYTES && rest.starts_with(&ENTRY)).ok_or(cut)?;
    let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(head, at)));
    let next = ENTRY_BYTES + name + extra + comment;
    if head.len() < next {
        return Err(cut.into());
    }
    let text = std::str::from_utf8(&head[ENTRY_BYTES..ENTRY_BYTES + name]);
    let text = text.map_err(|_| "the archive has a member whose name is not UTF-8")?.to_string();
    let is_encrypted = u16_at(head, 8) & 1 == 1;
    let is_stored = u16_at(head, 10) == 0 && !is_encrypted;
    let mut wide = extra_64(&head[ENTRY_BYTES + name..ENTRY_BYTES + name + extra]).as_chunks::<8>().0.iter();
    // In this order the values that do not fit stand in the extra field.
    let [bytes, packed, header] = [24, 20, 42].map(|at| {
        match u64::from(u32_at(head, at)) {
            IN_EXTRA => wide.next().map(|value| u64::from_le_bytes(*value)),
            value => Some(value),
        }
        .ok_or_else(|| format!("the size of the member `{text}` is missing"))
    });
    let (bytes, packed, header) = (bytes?, packed?, header?);
    if is_stored && bytes != packed {
        return Err(format!("the stored member `{text}` has two sizes, {bytes} and {packed}"));
    }
    Ok((text, Member { is_stored, bytes, header }, at + next))
}

/// The 64-bit values of an extra field.
fn extra_64(mut fields: &[u8]) -> &[u8] {
    while fields.len() >= 4 {
        let (kind, bytes) = (u16_at(fields, 0), usize::from(u16_at(fields, 2)));
        let Some(values) = fields.get(4..4 + bytes) else { break };
        if kind == EXTRA_64 {
            return values;
        }
        fields = &fields[4 + bytes..];
    }
    &[]
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
