//! The tools there are, sorted by name: one line each.

use crate::tool::Entry;
use crate::*;

/// All tools.
pub static TOOLS: &[Entry] = &[
    Entry::of::<ablate::Ablate>(),
    Entry::of::<build_candidate::BuildCandidate>(),
    Entry::of::<eval::Eval>(),
    Entry::of::<inference_search::InferenceSearch>(),
    Entry::of::<job_cancel::JobCancel>(),
    Entry::of::<job_status::JobStatus>(),
    Entry::of::<plan::Plan>(),
    Entry::of::<recon::Recon>(),
    Entry::of::<run_status::RunStatus>(),
    Entry::of::<seal::Seal>(),
    Entry::of::<smoke::Smoke>(),
];

#[cfg(test)]
mod tests {
    use super::TOOLS;
    use crate::schema::complaints;
    use serde_json::Value;

    #[test]
    fn sorted_named_and_described() {
        assert!(TOOLS.is_sorted_by(|a, b| a.name < b.name));
        for tool in TOOLS {
            assert!(tool.name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_'), "{}", tool.name);
            assert!(tool.description.len() <= 1200 && tool.description.contains(". "), "{}", tool.name);
        }
    }

    #[test]
    fn schemas_are_portable() {
        for tool in TOOLS {
            for schema in [tool.input_schema(), tool.output_schema()] {
                assert_eq!(complaints(&Value::Object(schema)), Vec::<String>::new(), "{}", tool.name);
            }
        }
    }
}
