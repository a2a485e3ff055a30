//! Source trees and checkpoints as lists of files with digests, frozen into the store and laid out again.
//!
//! A manifest lists every file with its path, type, size and digest, sorted by the bytes of the path; its id is the digest of its
//! canonical bytes. Modes collapse to file or executable; times, owners, extended attributes and empty folders are left out.
//! What cannot mean the same on every machine is refused, never mapped: odd names, escaping links, devices. Files are hashed
//! while they are copied into the store, and a build works from that copy, so an edit in between cannot slip in.

use crate::canonical;
use crate::error::{RecordError, Result};
use crate::format::{MEDIA_BYTES, MEDIA_MANIFEST};
use crate::store::{Store, StoredBlob};
use crate::write::Draft;
use crit_core::digest::Digest;
use crit_core::error::{Diagnose, ErrorKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// The name under which a record attaches the manifest of its source tree.
pub const MANIFEST_NAME: &str = "source.manifest.json";
/// The prefix of the names under which a record attaches the files of its source tree.
pub const FILE_PREFIX: &str = "source/";

const SCHEMA: &str = "crit.manifest/v1";
/// Names that some system gives a meaning of their own, with or without an extension.
const RESERVED: &[&str] = &["aux", "con", "nul", "prn"];
/// Set-user-id and set-group-id.
const SET_ID_BITS: u32 = 0o6000;

/// Why a tree cannot be frozen or laid out.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A file that has no place in a source tree.
    #[error("`{path}` {why}")]
    Refused {
        /// The file, relative to the tree.
        path: String,
        /// Why.
        why: String,
    },
    /// A manifest that does not hold together.
    #[error("the manifest is not valid: {0}")]
    Manifest(String),
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

impl Diagnose for TreeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { .. } | Self::Manifest(_) => ErrorKind::Input,
            Self::Io { .. } => ErrorKind::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Refused { .. } => Some("rename or remove it, or list it as ignored".into()),
            _ => None,
        }
    }
}

/// What an entry of a manifest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// A file.
    File,
    /// A file that may be executed.
    Exec,
    /// A symbolic link; its bytes are the text of its target.
    Symlink,
}

/// One file of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileEntry {
    /// Its path within the tree, with `/`.
    pub path: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Its size in bytes.
    pub size: u64,
    /// The digest of its bytes.
    pub sha256: Digest,
}

/// All files of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// `crit.manifest/v1`.
    pub schema: String,
    /// The files, sorted by the bytes of their paths.
    pub files: Vec<FileEntry>,
    /// What was left out on request.
    #[serde(default)]
    pub ignored: Vec<String>,
}

impl Manifest {
    /// The canonical bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let value = serde_json::to_value(self).map_err(|e| TreeError::Manifest(e.to_string()))?;
        canonical::to_bytes(&value).map_err(|e| TreeError::Manifest(e.to_string()).into())
    }

    /// The id: the digest of the canonical bytes.
    pub fn id(&self) -> Result<Digest> {
        Ok(Digest::of(&self.to_bytes()?))
    }

    /// The sum of the sizes of its files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Reads a manifest and checks that it could have come from a tree.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |what: String| RecordError::from(TreeError::Manifest(what));
        let value = canonical::from_bytes(bytes).map_err(|e| invalid(e.to_string()))?;
        let manifest: Self = serde_json::from_value(value).map_err(|e| invalid(e.to_string()))?;
        if manifest.schema != SCHEMA {
            return Err(invalid(format!("`{}` is not {SCHEMA}", manifest.schema)));
        }
        if !manifest.files.windows(2).all(|pair| pair[0].path < pair[1].path) {
            return Err(invalid("its paths are not sorted and distinct".into()));
        }
        check_paths(manifest.files.iter().map(|file| file.path.as_str()))?;
        Ok(manifest)
    }

    /// The manifest of `paths`: files anywhere, each under the name it shall have. Links are followed, as model folders are
    /// often made of links into a cache. Use it for checkpoints.
    pub fn of_files<'a>(paths: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Result<Self> {
        let mut files = Vec::new();
        for (name, path) in paths {
            let file = File::open(path).map_err(io("open", path))?;
            let size = file.metadata().map_err(io("read", path))?.len();
            let sha256 = Digest::of_reader(file).map_err(io("read", path))?;
            files.push(FileEntry { path: name.into(), kind: FileType::File, size, sha256 });
        }
        Self::of_entries(files, &[])
    }

    fn of_entries(mut files: Vec<FileEntry>, ignored: &[String]) -> Result<Self> {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        check_paths(files.iter().map(|file| file.path.as_str()))?;
        let mut ignored = ignored.to_vec();
        ignored.sort_unstable();
        ignored.dedup();
        Ok(Self { schema: SCHEMA.into(), files, ignored })
    }
}

/// A tree whose files are in the store.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// What it consists of.
    pub manifest: Manifest,
    /// Its id.
    pub id: Digest,
    blobs: Vec<StoredBlob>,
}

impl Frozen {
    /// Attaches the manifest and all files to `draft`.
    pub fn attach(&self, draft: Draft) -> Result<Draft> {
        let draft = draft.attach(MANIFEST_NAME, MEDIA_MANIFEST, self.manifest.to_bytes()?);
        Ok(self.manifest.files.iter().zip(&self.blobs).fold(draft, |draft, (file, blob)| {
            draft.attach_stored(format!("{FILE_PREFIX}{}", file.path), MEDIA_BYTES, *blob)
        }))
    }

    /// Lays the tree out in `dest`, from the store's copy.
    pub fn materialise(&self, store: &Store, dest: &Path) -> Result<()> {
        let blobs: HashMap<Digest, StoredBlob> = self.blobs.iter().map(|blob| (blob.sha256, *blob)).collect();
        materialise(&self.manifest, dest, &|sha256| match blobs.get(sha256) {
            Some(blob) => store.stored_reader(blob),
            None => store.blob_reader(sha256),
        })
    }
}

/// The manifest of the folder `root` without `ignored`, storing nothing.
///
/// An ignored entry is a path within the tree, or `**/name` for a name anywhere.
pub fn scan(root: &Path, ignored: &[String]) -> Result<Manifest> {
    let (manifest, _) = gather(root, ignored, &|bytes| Ok(digest_of(bytes)), &|path| {
        let mut file = File::open(path).map_err(io("open", path))?;
        let size = file.metadata().map_err(io("read", path))?.len();
        let sha256 = Digest::of_reader(&mut file).map_err(io("read", path))?;
        Ok((sha256, size))
    })?;
    Ok(manifest)
}

/// Copies the folder `root` without `ignored` into `store`, hashing what it copies. See [`scan`] for `ignored`.
pub fn freeze(store: &Store, root: &Path, ignored: &[String]) -> Result<Frozen> {
    let put = |bytes: &[u8]| store.put_blob(bytes);
    let (manifest, blobs) = gather(root, ignored, &put, &|path| store.put_file(path))?;
    let id = manifest.id()?;
    Ok(Frozen { manifest, id, blobs })
}

/// Lays `manifest` out in `dest`, which must be absent or empty; `read` yields the bytes of a digest, which are checked.
pub fn materialise(manifest: &Manifest, dest: &Path, read: &dyn Fn(&Digest) -> Result<Box<dyn Read>>) -> Result<()> {
    check_paths(manifest.files.iter().map(|file| file.path.as_str()))?;
    fs::create_dir_all(dest).map_err(io("create", dest))?;
    if fs::read_dir(dest).map_err(io("list", dest))?.next().is_some() {
        return Err(refused(&dest.display().to_string(), "is not empty"));
    }
    let mut links = BTreeMap::new();
    for file in &manifest.files {
        let mut reader = read(&file.sha256)?;
        if file.kind == FileType::Symlink {
            links.insert(file.path.clone(), read_link_text(file, &mut *reader)?);
        } else {
            write_out(file, &mut *reader, dest)?;
        }
    }
    // Links come last, and only such as stay inside, so no file is ever written through one.
    check_links(&links, manifest)?;
    for (path, target) in &links {
        let at = dest.join(path);
        at.parent().map_or(Ok(()), |parent| fs::create_dir_all(parent).map_err(io("create", parent)))?;
        std::os::unix::fs::symlink(target, &at).map_err(io("create", &at))?;
    }
    Ok(())
}

impl Store {
    /// Lays `manifest` out in `dest` from attachments of recorded candidates.
    pub fn materialise(&self, manifest: &Manifest, dest: &Path) -> Result<()> {
        materialise(manifest, dest, &|sha256| self.blob_reader(sha256))
    }
}

trait Kept {
    fn named(&self) -> (Digest, u64);
}

impl Kept for StoredBlob {
    fn named(&self) -> (Digest, u64) {
        (self.sha256, self.size)
    }
}

impl Kept for (Digest, u64) {
    fn named(&self) -> (Digest, u64) {
        *self
    }
}

fn digest_of(bytes: &[u8]) -> (Digest, u64) {
    (Digest::of(bytes), bytes.len() as u64)
}

type PutBytes<'a, K> = &'a dyn Fn(&[u8]) -> Result<K>;
type PutFile<'a, K> = &'a dyn Fn(&Path) -> Result<K>;

fn gather<K: Kept>(
    root: &Path,
    ignored: &[String],
    put: PutBytes<'_, K>,
    put_file: PutFile<'_, K>,
) -> Result<(Manifest, Vec<K>)> {
    let mut found = Vec::new();
    list(root, "", ignored, &mut found)?;
    found.sort_unstable();
    check_paths(found.iter().map(String::as_str))?;
    let (mut files, mut kept, mut links) = (Vec::new(), Vec::new(), BTreeMap::new());
    for path in found {
        let at = root.join(&path);
        let before = fs::symlink_metadata(&at).map_err(io("read", &at))?;
        let (kind, one) = if before.file_type().is_symlink() {
            let target = fs::read_link(&at).map_err(io("read", &at))?;
            let target =
                target.to_str().ok_or_else(|| refused(&path, "links to a name that is not UTF-8"))?.to_string();
            let one = put(target.as_bytes())?;
            links.insert(path.clone(), target);
            (FileType::Symlink, one)
        } else {
            let kind = file_type(&path, &before)?;
            let one = put_file(&at)?;
            let after = fs::symlink_metadata(&at).map_err(io("read", &at))?;
            let same = (before.ino(), before.mtime(), before.mtime_nsec(), before.len())
                == (after.ino(), after.mtime(), after.mtime_nsec(), after.len());
            if !same || one.named().1 != after.len() {
                return Err(refused(&path, "changed while it was read"));
            }
            (kind, one)
        };
        let (sha256, size) = one.named();
        files.push(FileEntry { path, kind, size, sha256 });
        kept.push(one);
    }
    let manifest = Manifest::of_entries(files, ignored)?;
    check_links(&links, &manifest)?;
    Ok((manifest, kept))
}

fn list(root: &Path, within: &str, ignored: &[String], found: &mut Vec<String>) -> Result<()> {
    let folder = root.join(within);
    for entry in fs::read_dir(&folder).map_err(io("list", &folder))? {
        let entry = entry.map_err(io("list", &folder))?;
        let name = entry.file_name();
        let shown = format!("{within}{}{}", if within.is_empty() { "" } else { "/" }, name.to_string_lossy());
        if is_ignored(&shown, ignored) {
            continue;
        }
        if name.to_str().is_none() {
            return Err(refused(&shown, "has a name that is not UTF-8"));
        }
        let kind = entry.file_type().map_err(io("read", &entry.path()))?;
        if kind.is_dir() {
            check_name(&shown, &name.to_string_lossy())?;
            list(root, &shown, ignored, found)?;
        } else {
            found.push(shown);
        }
    }
    Ok(())
}

fn is_ignored(path: &str, ignored: &[String]) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    ignored.iter().any(|entry| match entry.strip_prefix("**/") {
        Some(anywhere) => anywhere == name,
        None => entry.trim_end_matches('/') == path,
    })
}

fn file_type(path: &str, meta: &fs::Metadata) -> Result<FileType> {
    let kind = meta.file_type();
    let odd = match () {
        () if kind.is_fifo() => Some("is a named pipe"),
        () if kind.is_socket() => Some("is a socket"),
        () if kind.is_block_device() || kind.is_char_device() => Some("is a device"),
        () if !kind.is_file() => Some("is neither file nor link"),
        () if meta.permissions().mode() & SET_ID_BITS != 0 => {
            Some("runs as another user (set-user-id or set-group-id)")
        }
        () => None,
    };
    match odd {
        Some(why) => Err(refused(path, why)),
        None if meta.permissions().mode() & 0o100 != 0 => Ok(FileType::Exec),
        None => Ok(FileType::File),
    }
}

/// Checks every component of every path, and that no two differ only in case or normal form.
fn check_paths<'a>(paths: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut folded: HashMap<String, String> = HashMap::new();
    let mut files: HashMap<String, ()> = HashMap::new();
    for path in paths {
        if path.is_empty() || path.starts_with('/') {
            return Err(refused(path, "is not a relative path"));
        }
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let prefix = &path[..end];
            check_name(path, prefix.rsplit('/').next().unwrap_or(prefix))?;
            let first = folded.entry(fold(prefix)).or_insert_with(|| prefix.to_string());
            if first != prefix {
                return Err(refused(path, &format!("and `{first}` are one name on some systems")));
            }
            if files.contains_key(prefix) {
                return Err(refused(path, &format!("needs `{prefix}` to be a folder, and it is a file")));
            }
        }
        files.insert(path.to_string(), ());
    }
    Ok(())
}

fn fold(path: &str) -> String {
    // Upper and then lower case also joins letters such as ß and ss, that lower case alone keeps apart.
    path.nfc().collect::<String>().to_uppercase().to_lowercase().nfc().collect()
}

fn check_name(path: &str, name: &str) -> Result<()> {
    let bare: String = name.chars().filter(|c| !is_invisible(*c)).collect::<String>().to_lowercase();
    let stem = bare.split('.').next().unwrap_or_default().trim_end();
    let numbered = |prefix: &str| stem.strip_prefix(prefix).is_some_and(|n| matches!(n.as_bytes(), [b'1'..=b'9']));
    let git = bare.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    let why = match () {
        () if name.is_empty() || name == "." || name == ".." => "has an empty, `.` or `..` part",
        () if !is_nfc(name) => "has a name that is not in Unicode NFC",
        () if name.chars().any(|c| c.is_control() || is_invisible(c)) => "has an invisible character in its name",
        () if git == ".git"
            || git.strip_prefix("git~").is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit())) =>
        {
            "looks like a git folder"
        }
        () if name.contains(['\\', ':', '*', '?', '"', '<', '>', '|']) => {
            "has a character that some systems give a meaning"
        }
        () if name.ends_with(['.', ' ']) => "ends in a dot or a space, which some systems drop",
        () if RESERVED.contains(&stem) || numbered("com") || numbered("lpt") => {
            "has a name that is a device on some systems"
        }
        () if name.len() > 255 => "has a name longer than 255 bytes",
        () => return Ok(()),
    };
    Err(refused(path, why))
}

/// Characters that show nothing and that some file systems ignore in names.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Checks that every link is relative, stays inside, leads to something of the tree, and passes no other link.
fn check_links(links: &BTreeMap<String, String>, manifest: &Manifest) -> Result<()> {
    for (path, target) in links {
        let resolved =
            resolve(path, target).ok_or_else(|| refused(path, &format!("links out of the tree, to `{target}`")))?;
        let passes = resolved.match_indices('/').map(|(end, _)| &resolved[..end]).chain([resolved.as_str()]);
        if passes.into_iter().any(|part| links.contains_key(part)) {
            return Err(refused(path, "links to or through another link"));
        }
        let folder = format!("{resolved}/");
        let exists = manifest.files.iter().any(|file| file.path == resolved || file.path.starts_with(&folder));
        if !exists {
            return Err(refused(path, &format!("links to `{target}`, which is not part of the tree")));
        }
    }
    Ok(())
}

fn resolve(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    if target.is_empty() || target.starts_with('/') {
        return None;
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    if parts.is_empty() { None } else { Some(parts.join("/")) }
}

fn read_link_text(file: &FileEntry, reader: &mut dyn Read) -> Result<String> {
    // The longest path Linux takes.
    const LINK_BYTES: u64 = 4096;
    let mut text = String::new();
    reader.take(LINK_BYTES).read_to_string(&mut text).map_err(io("read", Path::new(&file.path)))?;
    if digest_of(text.as_bytes()) != (file.sha256, file.size) {
        return Err(RecordError::damaged(file.path.clone(), "its bytes do not have its digest"));
    }
    Ok(text)
}

fn write_out(file: &FileEntry, reader: &mut dyn Read, dest: &Path) -> Result<()> {
    let path = dest.join(&file.path);
    path.parent().map_or(Ok(()), |parent| fs::create_dir_all(parent).map_err(io("create", parent)))?;
    let mode = if file.kind == FileType::Exec { 0o755 } else { 0o644 };
    let mut out = File::options().write(true).create_new(true).mode(mode).open(&path).map_err(io("create", &path))?;
    std::io::copy(reader, &mut out).and_then(|_| out.flush()).map_err(io("write", &path))?;
    let back = File::open(&path).map_err(io("open", &path))?;
    let size = back.metadata().map_err(io("read", &path))?.len();
    if (Digest::of_reader(back).map_err(io("read", &path))?, size) != (file.sha256, file.size) {
        return Err(RecordError::damaged(file.path.clone(), "its bytes do not have its digest"));
    }
    Ok(())
}

fn refused(path: &str, why: &str) -> RecordError {
    TreeError::Refused { path: path.into(), why: why.into() }.into()
}

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RecordError {
    let path = path.to_path_buf();
    move |source| TreeError::Io { doing, path, source }.into()
}
