//! The faces of crit: the MCP server and the command line, both thin over `crit-tools`.

pub mod cli;
pub mod guard;
pub mod mcp;
