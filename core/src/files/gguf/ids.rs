//! Names of the element types that GGUF files may have, for messages about those that are not read.

const NAMES: &[(u32, &str)] = &[
    (4, "Q4_2 (removed from the format)"),
    (5, "Q4_3 (removed from the format)"),
    (31, "Q4_0_4_4 (removed from the format)"),
    (32, "Q4_0_4_8 (removed from the format)"),
    (33, "Q4_0_8_8 (removed from the format)"),
    (36, "IQ4_NL_4_4 (removed from the format)"),
    (37, "IQ4_NL_4_8 (removed from the format)"),
    (38, "IQ4_NL_8_8 (removed from the format)"),
];

/// The name of the element type with this number, if the format has it and we do not read it.
pub(super) fn name(id: u32) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == id).map(|(_, name)| *name)
}
