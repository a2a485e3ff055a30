//! `crit inference search`: find strategies of the catalogue.

use super::call::Face;
use clap::Subcommand;
use serde_json::{Value, json};

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Search by words, slot and backend.
    Search {
        /// Words; none lists all.
        query: Vec<String>,
        /// Only this slot.
        #[arg(long)]
        slot: Option<String>,
        /// Only this backend.
        #[arg(long)]
        backend: Option<String>,
        /// Show this entry in full.
        #[arg(long)]
        entry: Option<String>,
        /// Most entries.
        #[arg(long)]
        limit: Option<u32>,
    },
}

impl Face for Args {
    const TOOL: &'static str = "inference_search";

    fn arguments(&self) -> Value {
        let Action::Search { query, slot, backend, entry, limit } = &self.action;
        json!({"query": query.join(" "), "slot": slot, "backend": backend, "entry": entry, "limit": limit})
    }
}
