//! The files beside a graph that hold its tensors' values. A place outside the model's folder is never opened.

use crate::files::map::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The external files of a graph, each opened once.
pub(super) struct External<'a> {
    model: &'a Path,
    open: BTreeMap<PathBuf, Arc<Bytes>>,
}

impl<'a> External<'a> {
    pub(super) fn new(model: &'a Path) -> Self {
        Self { model, open: BTreeMap::new() }
    }

    /// The files opened.
    pub(super) fn files(self) -> impl Iterator<Item = PathBuf> {
        self.open.into_keys()
    }

    /// The file and the place in it of a tensor of `bytes` bytes.
    pub(super) fn find(
        &mut self,
        place: &BTreeMap<String, String>,
        bytes: usize,
    ) -> Result<(Arc<Bytes>, Range<usize>), String> {
        let location = place.get("location").map_or("", String::as_str);
        let path = self.inside(location)?;
        let number = |key: &str| match place.get(key) {
            None => Ok(None),
            Some(text) => match text.parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!("its external {key} `{}` is no number of bytes", text.escape_debug())),
            },
        };
        let (start, length) = (number("offset")?.unwrap_or(0), number("length")?);
        if length.is_some_and(|length| length != bytes) {
            return Err(format!("its type and shape need {bytes} bytes, the external data have {length:?}"));
        }
        let file = self.open(path)?;
        let end = start.checked_add(bytes).filter(|end| *end <= file.len());
        let end = end.ok_or_else(|| {
            format!("its {bytes} bytes at offset {start} lie past the end of `{location}`, which has {}", file.len())
        })?;
        Ok((file, start..end))
    }

    /// The path of a location, which must lie in the model's folder.
    fn inside(&self, location: &str) -> Result<PathBuf, String> {
        let shown = location.escape_debug();
        let is_plain = !location.is_empty()
            && !location.contains(['\\', '\0', ':'])
            && Path::new(location).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_plain {
            return Err(format!("its external data lie at `{shown}`, which is no file in the model's folder"));
        }
        let folder = self.model.parent().unwrap_or(Path::new("."));
        let path = folder.join(location);
        let real = std::fs::canonicalize(&path).map_err(|_| format!("its external data `{shown}` are not there"))?;
        // A link may lead on only to where the model itself really lies, as in the hub's cache.
        let homes = [Some(folder), std::fs::canonicalize(self.model).ok().as_deref().and_then(Path::parent)]
            .map(|home| home.and_then(|home| std::fs::canonicalize(home).ok()));
        if !homes.iter().flatten().any(|home| real.starts_with(home)) {
            return Err(format!("its external data `{shown}` are a link that leads out of the model's folder"));
        }
        Ok(path)
    }

    fn open(&mut self, path: PathBuf) -> Result<Arc<Bytes>, String> {
        if let Some(open) = self.open.get(&path) {
            return Ok(open.clone());
        }
        let shown = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file =
            Bytes::open(&path).map_err(|error| format!("its external data `{shown}` cannot be read: {error}"))?;
        let file = Arc::new(file);
        self.open.insert(path, file.clone());
        Ok(file)
    }
}
