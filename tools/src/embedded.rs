//! The small trained model that crit carries, for the demo and for trying a machine.

use crate::error::ToolError;
use crate::workspace::Workspace;
use std::path::PathBuf;

/// Its name.
const NAME: &str = "tiny-qwen3";

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../assets/tiny-qwen3/", $name)))
    };
}

/// Its files (CC0).
const FILES: &[(&str, &[u8])] = &[
    file!("README.md"),
    file!("config.json"),
    file!("generation_config.json"),
    file!("model.safetensors"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
];

/// Lays the model out in the workspace's cache; returns its folder. What is there and whole is left alone.
///
/// # Errors
/// The workspace cannot be written.
pub fn unpack(workspace: &Workspace) -> Result<PathBuf, ToolError> {
    let folder = workspace.cache().join(NAME);
    std::fs::create_dir_all(&folder).map_err(|error| ToolError::io("create", &folder, &error))?;
    for (name, bytes) in FILES {
        let path = folder.join(name);
        let whole = std::fs::metadata(&path).is_ok_and(|meta| meta.len() == bytes.len() as u64);
        if whole && std::fs::read(&path).is_ok_and(|found| found == *bytes) {
            continue;
        }
        let part = path.with_extension("part");
        let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, &path));
        written.map_err(|error| ToolError::io("write", &path, &error))?;
    }
    Ok(folder)
}
