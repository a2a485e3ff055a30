//! The ops, one file each. A new op is one file, one `mod` line, one line in [`NAMES`].

pub mod act;
pub mod add;
pub mod add_positions;
pub mod attention;
pub mod embed;
pub mod gated_act;
pub mod gated_delta;
pub mod gated_norm;
pub mod kv_write;
pub mod layer_norm;
pub mod linear;
pub mod mamba2;
pub mod mul;
pub mod rms_norm;
pub mod rope;
pub mod scale;
pub mod select_rows;
pub mod short_conv;
pub mod softcap;
pub mod take_columns;

/// Every op's name, sorted: what a backend must cover.
pub const NAMES: &[&str] = &[
    "act",
    "add",
    "add_positions",
    "attention",
    "embed",
    "gated_act",
    "gated_delta",
    "gated_norm",
    "kv_write",
    "layer_norm",
    "linear",
    "mamba2",
    "mul",
    "rms_norm",
    "rope",
    "scale",
    "select_rows",
    "short_conv",
    "softcap",
    "take_columns",
];
