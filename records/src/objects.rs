//! Git objects as files that any damage shows in.
//!
//! libgit2 loops for ever on some truncated loose objects and calls a rewrite of a damaged one a success, so loose objects are
//! read and written here; libgit2 reads packs alone. A loose object is written in stored (uncompressed) deflate blocks: the
//! encoding is then a function of the content, and a changed byte cannot hide in bits that inflating ignores. Every read
//! hashes what it read.
//!
//! Objects from other git tools (a fetch, a repack) are accepted in their own encoding.

use crate::durable;
use crate::error::{RecordError, Result};
use git2::{ObjectType, Oid};
use sha1::{Digest as _, Sha1};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Larger than any object crit stores; bounds what a damaged length can make a reader allocate.
const MAX_OBJECT_BYTES: usize = 64 << 20;
/// The most that one stored deflate block holds.
const BLOCK_BYTES: usize = 65_535;
/// File mode of a file in a git tree.
const MODE_FILE: &str = "100644";
/// File mode of a folder in a git tree.
const MODE_FOLDER: &str = "40000";

/// A git object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) kind: ObjectType,
    pub(crate) bytes: Vec<u8>,
}

/// The object folder of the store.
pub(crate) struct Objects {
    folder: PathBuf,
    quarantine: PathBuf,
    packs: OnceCell<git2::Odb<'static>>,
    packs_allowed: bool,
}

impl Objects {
    /// The objects of the bare repository `repo`; damaged files that are in the way of a write go to `quarantine`.
    pub(crate) fn new(repo: &Path, quarantine: &Path) -> Self {
        Self {
            folder: repo.join("objects"),
            quarantine: quarantine.join("objects"),
            packs: OnceCell::new(),
            packs_allowed: true,
        }
    }

    /// The same objects with all packs left alone, for when they are damaged.
    pub(crate) fn without_packs(mut self) -> Self {
        self.packs_allowed = false;
        self
    }

    /// Where `oid` lies when it is loose.
    pub(crate) fn loose_path(&self, oid: Oid) -> PathBuf {
        let hex = oid.to_string();
        self.folder.join(&hex[..2]).join(&hex[2..])
    }

    /// Reads and checks `oid`.
    pub(crate) fn read(&self, oid: Oid) -> Result<Object> {
        match read_loose(&self.loose_path(oid), oid)? {
            Some(object) => Ok(object),
            None => self.read_packed(oid),
        }
    }

    /// Reads `oid`, which must be of `kind`.
    pub(crate) fn read_as(&self, oid: Oid, kind: ObjectType) -> Result<Vec<u8>> {
        let object = self.read(oid)?;
        if object.kind != kind {
            return Err(RecordError::damaged(
                format!("object {oid}"),
                format!("it is a {}, not a {kind}", object.kind),
            ));
        }
        Ok(object.bytes)
    }

    /// Stores an object durably and answers its id.
    pub(crate) fn write(&self, kind: ObjectType, bytes: &[u8]) -> Result<Oid> {
        let raw = raw_form(kind, bytes);
        let oid = hash(&raw)?;
        let path = self.loose_path(oid);
        match read_loose(&path, oid) {
            Ok(Some(_)) => return Ok(oid),
            Ok(None) => {}
            Err(_) => {
                durable::quarantine(&path, &self.quarantine)?;
            }
        }
        durable::write_file(&path, &deflate_stored(&raw))?;
        Ok(oid)
    }

    /// Stores a tree durably and answers its id.
    pub(crate) fn write_tree(&self, tree: &Tree) -> Result<Oid> {
        self.write(ObjectType::Tree, &tree.to_bytes())
    }

    /// Reads a tree.
    pub(crate) fn read_tree(&self, oid: Oid) -> Result<Tree> {
        let bytes = self.read_as(oid, ObjectType::Tree)?;
        Tree::parse(&bytes).ok_or_else(|| RecordError::damaged(format!("tree {oid}"), "it is not as crit writes trees"))
    }

    /// Reads a commit.
    pub(crate) fn read_commit(&self, oid: Oid) -> Result<Commit> {
        let bytes = self.read_as(oid, ObjectType::Commit)?;
        Commit::parse(bytes)
            .ok_or_else(|| RecordError::damaged(format!("commit {oid}"), "it is not as crit writes commits"))
    }

    /// The ids of all packed objects.
    pub(crate) fn packed_ids(&self) -> Result<Vec<Oid>> {
        let mut ids = Vec::new();
        let keep = |oid: &Oid| {
            ids.push(*oid);
            true
        };
        self.packs()?.foreach(keep).map_err(RecordError::git("list packed objects"))?;
        ids.retain(|oid| !self.loose_path(*oid).exists());
        Ok(ids)
    }

    fn packs(&self) -> Result<&git2::Odb<'static>> {
        if let Some(packs) = self.packs.get() {
            return Ok(packs);
        }
        let open = || {
            let odb = git2::Odb::new()?;
            odb.add_disk_alternate(&self.folder.to_string_lossy())?;
            Ok(odb)
        };
        let odb = open().map_err(RecordError::git("open the packed objects"))?;
        Ok(self.packs.get_or_init(|| odb))
    }

    fn read_packed(&self, oid: Oid) -> Result<Object> {
        if !self.packs_allowed {
            return Err(RecordError::damaged(format!("object {oid}"), "it is missing, or in a damaged pack"));
        }
        let missing = |e: git2::Error| match e.code() {
            git2::ErrorCode::NotFound => RecordError::damaged(format!("object {oid}"), "it is missing"),
            _ => RecordError::damaged(format!("packed object {oid}"), e.message()),
        };
        let found = self.packs()?.read(oid).map_err(missing)?;
        let object = Object { kind: found.kind(), bytes: found.data().to_vec() };
        if hash(&raw_form(object.kind, &object.bytes))? != oid {
            return Err(RecordError::damaged(format!("packed object {oid}"), "its bytes do not have its id"));
        }
        Ok(object)
    }
}

/// Reads and checks the loose object at `path`, if there is one.
pub(crate) fn read_loose(path: &Path, oid: Oid) -> Result<Option<Object>> {
    let damaged = |what: String| RecordError::damaged(path.display().to_string(), what);
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RecordError::io("open", path)(error)),
    };
    let mut packed = Vec::new();
    let limit = MAX_OBJECT_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut packed).map_err(RecordError::io("read", path))?;
    let raw = inflate(&packed).map_err(damaged)?;
    if hash(&raw)? != oid {
        return Err(damaged("its bytes do not have its id".into()));
    }
    if differs_in_one_byte(&packed, &deflate_stored(&raw)) {
        return Err(damaged("a byte of its encoding is changed".into()));
    }
    parse_raw(raw).map(Some).ok_or_else(|| damaged("it is no git object".into()))
}

fn raw_form(kind: ObjectType, bytes: &[u8]) -> Vec<u8> {
    let mut raw = format!("{kind} {}\0", bytes.len()).into_bytes();
    raw.extend_from_slice(bytes);
    raw
}

fn parse_raw(mut raw: Vec<u8>) -> Option<Object> {
    let end = raw.iter().position(|b| *b == 0)?;
    let (kind, length) = std::str::from_utf8(&raw[..end]).ok()?.split_once(' ')?;
    let kind = ObjectType::from_str(kind)?;
    if length != (raw.len() - end - 1).to_string() {
        return None;
    }
    Some(Object { kind, bytes: raw.split_off(end + 1) })
}

fn hash(raw: &[u8]) -> Result<Oid> {
    let digest: [u8; 20] = Sha1::digest(raw).into();
    Oid::from_bytes(&digest).map_err(RecordError::git("name an object"))
}

/// The SHA-1 of `bytes`, which git puts at the end of packs and indexes.
pub(crate) fn sha1(bytes: &[u8]) -> [u8; 20] {
    Sha1::digest(bytes).into()
}

/// A zlib stream of stored blocks: the same content always gives the same bytes.
fn deflate_stored(raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut rest = raw;
    loop {
        let (block, after) = rest.split_at(rest.len().min(BLOCK_BYTES));
        let length = block.len() as u16;
        out.push(u8::from(after.is_empty()));
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    out.extend_from_slice(&adler32(raw).to_be_bytes());
    out
}

fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    // 5552 is the longest run whose sums stay below 2^32.
    let (a, b) = bytes.chunks(5552).fold((1u32, 0u32), |(mut a, mut b), run| {
        for byte in run {
            a += u32::from(*byte);
            b += a;
        }
        (a % MODULUS, b % MODULUS)
    });
    b << 16 | a
}

fn inflate(packed: &[u8]) -> std::result::Result<Vec<u8>, String> {
    if packed.is_empty() {
        return Err("it is empty".into());
    }
    let mut decoder = flate2::bufread::ZlibDecoder::new(packed);
    let mut raw = Vec::new();
    let limit = MAX_OBJECT_BYTES as u64;
    decoder.by_ref().take(limit).read_to_end(&mut raw).map_err(|e| format!("it does not inflate: {e}"))?;
    if raw.len() as u64 == limit {
        return Err(format!("it inflates to more than {limit} bytes"));
    }
    if decoder.total_in() != packed.len() as u64 {
        return Err("bytes follow its end".into());
    }
    Ok(raw)
}

/// Inflating ignores a few bits; our own encoding with one of those flipped is damage, not another encoding.
fn differs_in_one_byte(packed: &[u8], ours: &[u8]) -> bool {
    packed.len() == ours.len() && packed.iter().zip(ours).filter(|(a, b)| a != b).count() == 1
}

/// An entry of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) folder: bool,
    pub(crate) oid: Oid,
}

/// A git tree whose entries are all folders or all files, so that their order is the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    pub(crate) entries: BTreeMap<String, Entry>,
}

impl Tree {
    pub(crate) fn add(&mut self, name: impl Into<String>, folder: bool, oid: Oid) {
        self.entries.insert(name.into(), Entry { folder, oid });
    }

    pub(crate) fn get(&self, name: &str, folder: bool) -> Option<Oid> {
        self.entries.get(name).filter(|entry| entry.folder == folder).map(|entry| entry.oid)
    }

    /// The id it has once it is stored.
    pub(crate) fn id(&self) -> Result<Oid> {
        hash(&raw_form(ObjectType::Tree, &self.to_bytes()))
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, entry) in &self.entries {
            let mode = if entry.folder { MODE_FOLDER } else { MODE_FILE };
            out.extend_from_slice(format!("{mode} {name}\0").as_bytes());
            out.extend_from_slice(entry.oid.as_bytes());
        }
        out
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut tree = Self::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = rest.iter().position(|b| *b == 0)?;
            let (mode, name) = std::str::from_utf8(&rest[..end]).ok()?.split_once(' ')?;
            let oid = Oid::from_bytes(rest.get(end + 1..end + 21)?).ok()?;
            if mode != MODE_FILE && mode != MODE_FOLDER {
                return None;
            }
            tree.add(name, mode == MODE_FOLDER, oid);
            rest = &rest[end + 21..];
        }
        (tree.to_bytes() == bytes).then_some(tree)
    }
}

/// A commit, with the links read and all bytes kept for comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) tree: Oid,
    pub(crate) parent: Option<Oid>,
    pub(crate) bytes: Vec<u8>,
}

impl Commit {
    /// The commit of one record: nothing in it but the record decides its bytes.
    pub(crate) fn new(tree: Oid, parent: Option<Oid>, secs: u64, message: &str) -> Self {
        let parent_line = parent.map_or_else(String::new, |p| format!("parent {p}\n"));
        let who = format!("{IDENTITY} {secs} +0000");
        let text = format!("tree {tree}\n{parent_line}author {who}\ncommitter {who}\n\n{message}");
        Self { tree, parent, bytes: text.into_bytes() }
    }

    pub(crate) fn parse(bytes: Vec<u8>) -> Option<Self> {
        let text = std::str::from_utf8(&bytes).ok()?;
        let mut lines = text.lines();
        let tree = Oid::from_str(lines.next()?.strip_prefix("tree ")?).ok()?;
        let parent = match lines.next()?.strip_prefix("parent ") {
            Some(hex) => Some(Oid::from_str(hex).ok()?),
            None => None,
        };
        Some(Self { tree, parent, bytes })
    }
}

/// Who commits. A fixed name, since the record itself says who wrote it.
pub(crate) const IDENTITY: &str = "crit <crit@localhost>";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn objects(folder: &Path) -> Objects {
        Objects::new(folder, &folder.join("quarantine"))
    }

    #[test]
    fn ids_agree_with_libgit2_and_its_reader_reads_our_files() {
        let folder = tempfile::tempdir().unwrap();
        let repo = git2::Repository::init_bare(folder.path()).unwrap();
        let objects = objects(folder.path());
        for length in [0, 1, 65_527, 65_528, 65_535, 65_536, 200_000] {
            let bytes: Vec<u8> = (0..length).map(|i: usize| (i * i % 251) as u8).collect();
            let oid = objects.write(ObjectType::Blob, &bytes).unwrap();
            assert_eq!(oid, Oid::hash_object(ObjectType::Blob, &bytes).unwrap());
            assert_eq!(repo.find_blob(oid).unwrap().content(), bytes);
            assert_eq!(objects.read_as(oid, ObjectType::Blob).unwrap(), bytes);
        }
        let theirs = repo.blob(&b"compressed by libgit2 ".repeat(30)).unwrap();
        assert_eq!(objects.read_as(theirs, ObjectType::Blob).unwrap(), b"compressed by libgit2 ".repeat(30));
    }

    #[test]
    fn every_flip_and_every_cut_of_a_loose_object_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let objects = objects(folder.path());
        let oid = objects.write(ObjectType::Blob, b"a record").unwrap();
        let path = objects.loose_path(oid);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            for flip in 1..=255u8 {
                let mut bad = good.clone();
                bad[at] ^= flip;
                fs::write(&path, &bad).unwrap();
                assert!(objects.read(oid).is_err(), "byte {at} xor {flip}");
            }
            fs::write(&path, &good[..at]).unwrap();
            assert!(objects.read(oid).is_err(), "cut to {at}");
        }
        fs::write(&path, [&good[..], b"x"].concat()).unwrap();
        assert!(objects.read(oid).is_err());
        // Writing again over the damage mends it, and keeps the damaged file.
        assert_eq!(objects.write(ObjectType::Blob, b"a record").unwrap(), oid);
        assert_eq!(fs::read(&path).unwrap(), good);
        assert_eq!(fs::read_dir(folder.path().join("quarantine/objects")).unwrap().count(), 1);
    }

    proptest! {
        #[test]
        fn arbitrary_files_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = inflate(&bytes);
            let _ = Tree::parse(&bytes);
            let _ = Commit::parse(bytes);
        }
    }
}
