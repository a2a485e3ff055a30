//! Lists the sources an engine package is built against, for `sdk` to embed: this package and the two below it, the
//! part of the workspace manifest they use, and the lock file.
//!
//! Works the same in the repository and in an unpacked SDK, because both have the same layout.

#![allow(clippy::print_stdout, reason = "that is how a build script talks to Cargo")]

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

const PACKAGES: [&str; 3] = ["core", "inference-catalog", "kernels"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_SDK").is_none() {
        return Ok(());
    }
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..").canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut paths = Vec::new();
    for package in PACKAGES {
        for part in ["Cargo.toml", "build.rs", "src"] {
            let path = root.join(package).join(part);
            println!("cargo:rerun-if-changed={}", path.display());
            collect(&path, &mut paths)?;
        }
    }
    let mut files: Vec<(String, PathBuf)> = paths
        .into_iter()
        .map(|path| Ok((path.strip_prefix(&root)?.to_str().ok_or("a path is not UTF-8")?.to_string(), path)))
        .collect::<Result<_, Box<dyn Error>>>()?;
    for name in ["Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(name).display());
    }
    let manifest = out.join("sdk-workspace.toml");
    fs::write(&manifest, excerpt(&root)?)?;
    files.push(("Cargo.toml".into(), manifest));
    files.push(("Cargo.lock".into(), root.join("Cargo.lock")));
    files.sort();
    let mut list = String::from("&[\n");
    for (name, path) in files {
        writeln!(list, "    ({name:?}, include_bytes!({:?})),", path.display().to_string())?;
    }
    list.push_str("]\n");
    fs::write(out.join("sdk_files.rs"), list)?;
    Ok(())
}

/// Adds `path`, or all files below it but hidden ones and editors' copies.
fn collect(path: &Path, out: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.is_file() {
        out.push(path.to_path_buf());
    }
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let entry = entry?.path();
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with('.') && !name.ends_with('~') {
                collect(&entry, out)?;
            }
        }
    }
    Ok(())
}

/// The workspace manifest with the SDK's packages as members and only the dependencies they name.
fn excerpt(root: &Path) -> Result<String, Box<dyn Error>> {
    let used: Vec<String> = PACKAGES
        .iter()
        .map(|package| fs::read_to_string(root.join(package).join("Cargo.toml")))
        .collect::<Result<_, _>>()?;
    let names = |dependency: &str| {
        used.iter().flat_map(|text| text.lines()).any(|line| {
            line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with('.') || rest.starts_with(" ="))
        })
    };
    let mut out = String::new();
    let mut section = String::new();
    for line in fs::read_to_string(root.join("Cargo.toml"))?.lines() {
        if line.starts_with('[') {
            section = line.to_string();
        }
        let keep = match (section.as_str(), line.split_once(" = ")) {
            ("[workspace]", Some(("members", _))) => {
                writeln!(out, "members = {PACKAGES:?}")?;
                false
            }
            ("[workspace.dependencies]", Some((dependency, _))) => names(dependency),
            _ => true,
        };
        if keep {
            writeln!(out, "{line}")?;
        }
    }
    Ok(out)
}
