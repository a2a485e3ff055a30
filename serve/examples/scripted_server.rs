//! A server without a model, for trying clients: `scripted_server [PORT]`. It repeats the last user message in capitals;
//! a message with "crash" makes its engine die in the middle of the answer. It stops when its stdin ends.

#[path = "../tests/kit/mod.rs"]
mod kit;

use crit_serve::BackgroundServer;
use kit::scripted::{Scripted, Step, Submit, text_steps};
use std::io::Read;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = kit::config();
    config.port = std::env::args().nth(1).map_or(Ok(0), |port| port.parse())?;
    let server = BackgroundServer::start(config, Arc::new(kit::ByteText::default()), Arc::new(Scripted::new(answer)))?;
    server.wait_ready()?;
    use std::io::Write;
    writeln!(std::io::stdout(), "{}", server.url())?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop()?;
    Ok(())
}

fn answer(submit: &Submit) -> Vec<Step> {
    let prompt = submit.text();
    let said = prompt.rsplit("<user>").next().and_then(|rest| rest.strip_suffix("<assistant>")).unwrap_or_default();
    let mut steps = text_steps(&said.to_uppercase());
    if said.contains("crash") {
        steps.truncate(3);
        steps.extend([Step::Wait(100), Step::Crash]);
    }
    steps
}
