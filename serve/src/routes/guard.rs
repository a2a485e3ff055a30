//! A server on loopback answers this machine only. A web page can make a browser here send it requests under a name of
//! the page's own (DNS rebinding), so a `Host` that is not this machine is refused.

use crate::app::App;
use crate::dialects::openai_error::OpenAiError;
use crate::problem::Problem;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// Refuses foreign hosts, unless remote clients are allowed.
pub async fn own_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    match host {
        Some(host) if !app.config.allow_remote && !is_own(&host) => {
            OpenAiError(Problem::ForeignHost(host)).into_response()
        }
        _ => next.run(request).await,
    }
}

fn is_own(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_own;

    #[test]
    fn only_this_machine_is_own() {
        for own in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.1.2.3", "[::1]:80", "[::1]"] {
            assert!(is_own(own), "{own}");
        }
        for foreign in
            ["evil.example", "localhost.evil.example:80", "192.168.0.1", "127.0.0.1.evil", "[fe80::1]:80", ""]
        {
            assert!(!is_own(foreign), "{foreign}");
        }
    }
}
