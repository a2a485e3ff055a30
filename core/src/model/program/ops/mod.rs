//! The ops, one file each. A new op is one file, one `mod` line, one line in [`NAMES`].

pub mod add;
pub mod attention;
pub mod embed;
pub mod gated_act;
pub mod kv_write;
pub mod linear;
pub mod rms_norm;
pub mod rope;
pub mod scale;
pub mod select_rows;
pub mod softcap;

/// Every op's name, sorted: what a backend must cover.
pub const NAMES: &[&str] = &[
    "add",
    "attention",
    "embed",
    "gated_act",
    "kv_write",
    "linear",
    "rms_norm",
    "rope",
    "scale",
    "select_rows",
    "softcap",
];
