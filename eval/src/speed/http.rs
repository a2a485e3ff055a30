//! A small blocking HTTP/1.1 client for measuring: one request a connection, answers read as they arrive.
//!
//! Written here so that nothing buffers between the socket and the clock: each line of a stream is stamped when its
//! last byte is read. It speaks plain HTTP to the loopback server of this project and to others alike.

use crate::error::EvalError;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest line and longest body accepted, so that a broken server cannot fill the memory.
const MAX_LINE_BYTES: u64 = 16 << 20;
const MAX_BODY_BYTES: u64 = 64 << 20;

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Host and port.
    pub authority: String,
    /// Path in front of every route, without a slash at its end.
    pub prefix: String,
}

impl Address {
    /// Reads `host:port` or `http://host:port/prefix`.
    ///
    /// # Errors
    /// Another scheme, or no port.
    pub fn parse(text: &str) -> Result<Self, EvalError> {
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (authority, prefix) = rest.split_once('/').map_or((rest, ""), |(a, p)| (a, p.trim_end_matches('/')));
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if text.contains("://") && !text.starts_with("http://") || port.is_none() {
            return Err(EvalError::Request {
                what: format!("`{text}` is not an address this client can reach"),
                hint: "give http://HOST:PORT of the running server".into(),
            });
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        Ok(Self { authority: authority.to_string(), prefix })
    }

    /// Sends a request and answers its body as a stream.
    ///
    /// # Errors
    /// No connection, a broken answer, or a status other than 200.
    pub fn send(&self, method: &str, path: &str, body: Option<&str>, timeout: Duration) -> Result<Body, EvalError> {
        self.send_as(method, path, body, timeout, None)
    }

    /// The same with a bearer token.
    ///
    /// # Errors
    /// As [`Address::send`].
    pub fn send_as(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
        timeout: Duration,
        bearer: Option<&str>,
    ) -> Result<Body, EvalError> {
        let broken = |error: std::io::Error| self.broken(&error.to_string());
        let mut stream = TcpStream::connect(&self.authority).map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        stream.set_read_timeout(Some(timeout)).map_err(broken)?;
        stream.set_write_timeout(Some(timeout)).map_err(broken)?;
        let path = format!("{}{path}", self.prefix);
        let body = body.unwrap_or("");
        let bearer = bearer.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept: */*\r\n{bearer}Content-Type: \
             application/json\r\nContent-Length: {}\r\n\r\n",
            self.authority,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(broken)?;
        self.answer(BufReader::new(stream), &path)
    }

    fn answer(&self, mut reader: BufReader<TcpStream>, path: &str) -> Result<Body, EvalError> {
        let line = self.line(&mut reader)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok());
        let status = status.ok_or_else(|| self.broken(&format!("answers `{line}`, which is not HTTP")))?;
        let mut body = Body { address: self.clone(), reader, left: Left::UntilClose };
        loop {
            let line = self.line(&mut body.reader)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                body.left = Left::Chunks { chunk: 0, first: true };
            } else if name.eq_ignore_ascii_case("content-length") && !matches!(body.left, Left::Chunks { .. }) {
                let length = value.parse().map_err(|_| self.broken("answers a length that is no number"))?;
                body.left = Left::Bytes(length);
            }
        }
        if status == 200 {
            return Ok(body);
        }
        let mut text = body.text()?;
        text.truncate(text.char_indices().nth(500).map_or(text.len(), |(i, _)| i));
        Err(EvalError::Status { address: self.authority.clone(), path: path.to_string(), status, body: text })
    }

    fn line(&self, reader: &mut impl BufRead) -> Result<String, EvalError> {
        let mut line = Vec::new();
        let read = reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        read.map_err(|error| self.broken(&error.to_string()))?;
        if line.pop() != Some(b'\n') {
            return Err(self.broken("broke off in the middle of its answer"));
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| self.broken("answers a header that is not text"))
    }

    fn broken(&self, what: &str) -> EvalError {
        EvalError::Http { address: self.authority.clone(), what: what.to_string() }
    }
}

/// How much of a body is still to come.
#[derive(Debug)]
enum Left {
    UntilClose,
    Bytes(u64),
    Chunks { chunk: u64, first: bool },
    Nothing,
}

/// An answer's body, read as it arrives.
#[derive(Debug)]
pub struct Body {
    address: Address,
    reader: BufReader<TcpStream>,
    left: Left,
}

impl Body {
    /// The whole body as text.
    ///
    /// # Errors
    /// The connection breaks, or the body is too long or no text.
    pub fn text(mut self) -> Result<String, EvalError> {
        let mut bytes = Vec::new();
        let address = self.address.clone();
        let read = (&mut self).take(MAX_BODY_BYTES).read_to_end(&mut bytes);
        read.map_err(|error| address.broken(&error.to_string()))?;
        String::from_utf8(bytes).map_err(|_| address.broken("answers what is not text"))
    }

    /// The payload of the next `data:` line of an event stream; `None` at its end.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn next_event(&mut self, line: &mut Vec<u8>) -> Result<Option<String>, EvalError> {
        loop {
            line.clear();
            while line.last() != Some(&b'\n') {
                if line.len() as u64 > MAX_LINE_BYTES {
                    return Err(self.address.broken("streams a line without end"));
                }
                match self.byte().map_err(|error| self.address.broken(&error.to_string()))? {
                    Some(byte) => line.push(byte),
                    None => return Ok(None),
                }
            }
            let text = std::str::from_utf8(line).map_err(|_| self.address.broken("streams what is not text"))?;
            if let Some(payload) = text.strip_prefix("data:") {
                return Ok(Some(payload.trim().to_string()));
            }
        }
    }

    fn byte(&mut self) -> std::io::Result<Option<u8>> {
        let mut byte = [0u8];
        Ok((self.read(&mut byte)? == 1).then_some(byte[0]))
    }

    fn next_chunk(&mut self, first: bool) -> std::io::Result<u64> {
        let mut line = String::new();
        if !first {
            self.reader.by_ref().take(4).read_line(&mut line)?;
            line.clear();
        }
        self.reader.by_ref().take(64).read_line(&mut line)?;
        let digits = line.trim().split(';').next().unwrap_or("");
        u64::from_str_radix(digits, 16)
            .map_err(|_| std::io::Error::other(format!("broke off: `{}` is no chunk length", line.trim())))
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if let Left::Chunks { chunk: 0, first } = self.left {
            let chunk = self.next_chunk(first)?;
            self.left = if chunk == 0 { Left::Nothing } else { Left::Chunks { chunk, first: false } };
        }
        let most = match &self.left {
            Left::UntilClose => u64::MAX,
            Left::Bytes(left) => *left,
            Left::Chunks { chunk, .. } => *chunk,
            Left::Nothing => 0,
        };
        let room = buffer.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let read = self.reader.read(&mut buffer[..room])?;
        match &mut self.left {
            Left::Bytes(left) | Left::Chunks { chunk: left, .. } if read > 0 => *left -= read as u64,
            Left::Bytes(1..) | Left::Chunks { .. } if room > 0 => {
                return Err(std::io::Error::other("broke off in the middle of its answer"));
            }
            _ => {}
        }
        Ok(read)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that answers each connection with the bytes `answer` makes of the request.
    pub(crate) fn serve(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap() <= 2 {
                        break;
                    }
                    if let Some(value) = line.strip_prefix("Content-Length: ") {
                        length = value.trim().parse().unwrap();
                    }
                    head.push_str(&line);
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                head.push_str(std::str::from_utf8(&body).unwrap());
                answer(&head, &mut stream);
            }
        });
        address
    }

    fn fixed(bytes: &'static [u8]) -> Address {
        serve(move |_, stream| stream.write_all(bytes).unwrap())
    }

    fn get(address: &Address) -> Result<Body, EvalError> {
        address.send("GET", "/x", None, Duration::from_secs(5))
    }

    #[test]
    fn bodies_by_length_by_chunks_and_until_close() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, too much"[..],
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=1\r\nllo\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nhello",
        ] {
            assert_eq!(get(&fixed(answer)).unwrap().text().unwrap(), "hello");
        }
    }

    #[test]
    fn events_over_chunk_borders() {
        let address = fixed(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: {\"\r\n8\r\na\":1}\n\n:\r\nd\r\nkeep\n\ndata: x\r\n1\r\n\n\r\n0\r\n\r\n",
        );
        let (mut body, mut line) = (get(&address).unwrap(), Vec::new());
        assert_eq!(body.next_event(&mut line).unwrap().as_deref(), Some("{\"a\":1}"));
        assert_eq!(body.next_event(&mut line).unwrap().as_deref(), Some("x"));
        assert_eq!(body.next_event(&mut line).unwrap(), None);
    }

    #[test]
    fn what_breaks_off_is_an_error_and_never_a_short_answer() {
        for answer in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ] {
            assert!(get(&fixed(answer)).unwrap().text().is_err());
        }
        assert!(get(&fixed(b"HTTP/1.1 200 OK\r\nConte")).is_err());
        assert!(get(&fixed(b"hello\r\n\r\n")).is_err());
    }

    #[test]
    fn an_error_status_carries_its_body() {
        let error = get(&fixed(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nfull")).unwrap_err().to_string();
        assert!(error.contains("503") && error.contains("full"), "{error}");
    }

    #[test]
    fn addresses() {
        let address = Address::parse("http://127.0.0.1:8080/base/").unwrap();
        assert_eq!((address.authority.as_str(), address.prefix.as_str()), ("127.0.0.1:8080", "/base"));
        assert!(Address::parse("https://127.0.0.1:1").is_err());
        assert!(Address::parse("127.0.0.1").is_err());
    }
}
