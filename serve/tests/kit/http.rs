//! A plain HTTP/1.1 client: one connection a request, so that dropping a stream is a client that hangs up.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const STREAM_LIMIT: Duration = Duration::from_secs(60);

/// Where requests go.
#[derive(Clone, Copy)]
pub struct Client {
    address: SocketAddr,
}

/// A response without its body.
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

/// A whole response.
pub struct Reply {
    pub head: Head,
    pub body: String,
}

impl Reply {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request and reads the head of the response.
    pub fn open(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (Head, Body) {
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let host = if headers.contains("host:") { String::new() } else { format!("host: {}\r\n", self.address) };
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}connection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        // A server that refuses a large body need not read it.
        let _ = socket.write_all(body);
        let mut reader = BufReader::new(socket);
        let head = read_head(&mut reader);
        let chunked = head.header("transfer-encoding") == Some("chunked");
        (head, Body { reader, chunked, left: 0, done: false })
    }

    pub fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let (head, mut reader) = self.open(method, path, headers, body);
        let mut body = String::new();
        reader.read_to_string(&mut body).unwrap();
        Reply { head, body }
    }

    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, "content-type: application/json\r\n", body.to_string().as_bytes())
    }

    /// A chat completion.
    pub fn chat(&self, body: &Value) -> Reply {
        self.post("/v1/chat/completions", body)
    }

    /// A streamed chat completion, to be read event by event.
    pub fn chat_stream(&self, mut body: Value) -> (Head, Events) {
        body["stream"] = true.into();
        let (head, reader) = self.open("POST", "/v1/chat/completions", "", body.to_string().as_bytes());
        (head, Events { lines: BufReader::new(reader), until: Instant::now() + STREAM_LIMIT })
    }

    /// All events of a streamed chat completion.
    #[track_caller]
    pub fn chat_events(&self, body: Value) -> Vec<String> {
        let (head, events) = self.chat_stream(body);
        assert_eq!(head.status, 200);
        events.collect()
    }

    /// The value of a metric.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in\n{page}")).parse().unwrap()
    }
}

fn read_head(reader: &mut impl BufRead) -> Head {
    let mut lines = reader.lines().map(Result::unwrap);
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines
        .take_while(|line| !line.is_empty())
        .map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (name.to_lowercase(), value.trim().to_owned())
        })
        .collect();
    Head { status, headers }
}

/// A response body, chunks undone.
pub struct Body {
    reader: BufReader<TcpStream>,
    chunked: bool,
    left: usize,
    done: bool,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if !self.chunked {
            return self.reader.read(buffer);
        }
        if self.left == 0 && !self.done {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                line.clear();
                self.reader.read_line(&mut line)?;
            }
            // A connection cut in the middle of a stream ends the body as well.
            self.left = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
            self.done = self.left == 0;
        }
        let take = self.left.min(buffer.len());
        let read = self.reader.read(&mut buffer[..take])?;
        self.left -= read;
        self.done |= read == 0;
        Ok(read)
    }
}

/// The `data` of a stream's events. A stream that goes on for too long, by keep-alive comments for instance, is a fault.
pub struct Events {
    lines: BufReader<Body>,
    until: Instant,
}

impl Iterator for Events {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            assert!(Instant::now() < self.until, "the stream does not end");
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(data) = line.strip_prefix("data:") {
                return Some(data.trim().to_owned());
            }
        }
    }
}

/// The text a client accumulates from a stream, a choice.
#[track_caller]
pub fn accumulated(events: &[String], choice: u64) -> String {
    let chunks = events.iter().filter(|event| *event != "[DONE]");
    chunks
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .filter_map(|chunk| {
            let choice = chunk["choices"].as_array()?.iter().find(|part| part["index"] == choice)?.clone();
            Some(choice["delta"]["content"].as_str()?.to_owned())
        })
        .collect()
}
