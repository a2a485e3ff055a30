//! Names of the element types that GGUF files may have, for messages about those that are not read.

const NAMES: &[(u32, &str)] = &[
    (4, "Q4_2 (removed from the format)"),
    (5, "Q4_3 (removed from the format)"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4 (removed from the format)"),
    (32, "Q4_0_4_8 (removed from the format)"),
    (33, "Q4_0_8_8 (removed from the format)"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4 (removed from the format)"),
    (37, "IQ4_NL_4_8 (removed from the format)"),
    (38, "IQ4_NL_8_8 (removed from the format)"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];

/// The name of the element type with this number, if the format has it and we do not read it.
pub(super) fn name(id: u32) -> Option<&'static str> {
    NAMES.iter().find(|(known, _)| *known == id).map(|(_, name)| *name)
}
