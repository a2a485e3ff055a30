//! The layout of safetensors files: headers, offsets, shards and their index.

use super::error::ExportError;
use super::write::{OutFile, Slot};
use serde_json::{Map, Value, json};

/// Bytes of a shard, unless one tensor alone is larger: what the field's own tools write.
const SHARD_BYTES: u64 = 5_000_000_000;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The type's name in the header.
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: u64,
}

/// Files and where each entry lies in them; `index` is the content of the index file when there are several.
pub(super) struct Layout {
    pub(super) files: Vec<OutFile>,
    pub(super) slots: Vec<Slot>,
    pub(super) index: Option<Value>,
}

/// Lays out `entries` in their order, with these strings under `__metadata__`.
pub(super) fn layout(entries: &[Entry], metadata: &[(&str, String)]) -> Result<Layout, ExportError> {
    let mut shards: Vec<Vec<usize>> = vec![Vec::new()];
    let mut filled = 0u64;
    for (i, entry) in entries.iter().enumerate() {
        if filled > 0 && filled + entry.bytes > SHARD_BYTES {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += entry.bytes;
        shards.last_mut().expect("one is always there").push(i);
    }
    let count = shards.len();
    let mut slots = vec![Slot { file: 0, at: 0 }; entries.len()];
    let mut files = Vec::new();
    let mut map = Map::new();
    for (file, shard) in shards.iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".to_string(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", file + 1),
        };
        let header = header(entries, shard, metadata);
        let mut at = header.len() as u64;
        for i in shard {
            slots[*i] = Slot { file, at };
            at += entries[*i].bytes;
            map.insert(entries[*i].name.clone(), name.clone().into());
        }
        files.push(OutFile { name, header, len: at });
    }
    let total: u64 = entries.iter().map(|entry| entry.bytes).sum();
    map.sort_keys();
    let index = (count > 1).then(|| json!({"metadata": {"total_size": total}, "weight_map": map}));
    Ok(Layout { files, slots, index })
}

/// Length and header of one file, padded so that data are aligned.
fn header(entries: &[Entry], shard: &[usize], metadata: &[(&str, String)]) -> Vec<u8> {
    let mut map = Map::new();
    let strings: Map<String, Value> =
        metadata.iter().map(|(key, value)| (key.to_string(), value.clone().into())).collect();
    map.insert("__metadata__".into(), Value::Object(strings));
    let mut begin = 0u64;
    for i in shard {
        let Entry { name, dtype, shape, bytes } = &entries[*i];
        let end = begin + bytes;
        map.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}));
        begin = end;
    }
    let mut text = Value::Object(map).to_string().into_bytes();
    while !text.len().is_multiple_of(8) {
        text.push(b' ');
    }
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_break_between_tensors_and_the_index_names_all() {
        let entry = |i: usize, bytes| Entry { name: format!("t{i}"), dtype: "BF16", shape: vec![1], bytes };
        let entries = [entry(0, SHARD_BYTES - 2), entry(1, 2), entry(2, 2), entry(3, SHARD_BYTES * 2), entry(4, 8)];
        let layout = layout(&entries, &[("format", "pt".into())]).unwrap();
        assert_eq!(layout.slots.iter().map(|slot| slot.file).collect::<Vec<_>>(), [0, 0, 1, 2, 3]);
        assert_eq!(layout.slots[1].at, layout.slots[0].at + SHARD_BYTES - 2);
        let index = layout.index.unwrap();
        assert_eq!(index["weight_map"]["t3"], "model-00003-of-00004.safetensors");
        assert!(layout.files.iter().all(|file| file.header.len() % 8 == 0));
    }
}
