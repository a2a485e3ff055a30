//! Frames: a `u32` little-endian length and that many bytes of UTF-8 JSON.

use super::MAX_FRAME_BYTES;
use crate::error::{Diagnose, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

/// Why a frame cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other side announced, or this side made, more than a frame may hold.
    #[error("a frame of {bytes} bytes, at most {MAX_FRAME_BYTES} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The connection ended within a frame.
    #[error("the connection ended {missing} bytes before the end of a frame")]
    Truncated {
        /// Bytes missing.
        missing: usize,
    },
    /// The frame is not a message.
    #[error("a frame is not a message: {message}; it begins with `{start}`")]
    Invalid {
        /// What the parser says, with line and column.
        message: String,
        /// Its first characters.
        start: String,
    },
    /// The socket failed.
    #[error("socket: {0}")]
    Io(#[from] io::Error),
}

impl Diagnose for FrameError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Engine
    }
}

/// Writes a message as one frame.
///
/// # Errors
/// The message is too large or the socket failed.
pub fn write_frame(to: &mut impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message).map_err(|error| invalid(&error, &[]))?;
    let bytes = frame.len() - 4;
    if bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge { bytes });
    }
    frame[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    to.write_all(&frame)?;
    to.flush()?;
    Ok(())
}

/// Reads the next frame's bytes; `None` if the connection ended between frames.
///
/// # Errors
/// The frame is too large or cut off, or the socket failed.
pub fn read_frame_bytes(from: &mut impl Read) -> Result<Option<Vec<u8>>, FrameError> {
    let mut length = [0; 4];
    match read_up_to(from, &mut length)? {
        0 => return Ok(None),
        4 => {}
        got => return Err(FrameError::Truncated { missing: 4 - got }),
    }
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > MAX_FRAME_BYTES {
        return Err(FrameError::TooLarge { bytes });
    }
    // Grows as data comes: a length alone must not make anyone allocate.
    let mut frame = Vec::new();
    let got = from.take(bytes as u64).read_to_end(&mut frame)?;
    if got < bytes { Err(FrameError::Truncated { missing: bytes - got }) } else { Ok(Some(frame)) }
}

/// Reads the next message; `None` if the connection ended between frames.
///
/// # Errors
/// As [`read_frame_bytes`], or the frame is not such a message.
pub fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>, FrameError> {
    read_frame_bytes(from)?.map(|frame| parse_frame(&frame)).transpose()
}

/// The message in a frame.
///
/// # Errors
/// The frame is not such a message.
pub fn parse_frame<T: DeserializeOwned>(frame: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(frame).map_err(|error| invalid(&error, frame))
}

fn invalid(error: &serde_json::Error, frame: &[u8]) -> FrameError {
    let start = String::from_utf8_lossy(&frame[..frame.len().min(80)]).into_owned();
    FrameError::Invalid { message: error.to_string(), start }
}

fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Generate, Reply, Request};
    use proptest::prelude::*;

    #[test]
    fn messages_survive_the_trip() {
        let generate = Generate { prompt: vec![1, 2], max_tokens: 3, ..Default::default() };
        let request = Request::Submit { id: 7, generate };
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &request).expect("fits");
        write_frame(&mut bytes, &Request::Close).expect("fits");
        let mut from = bytes.as_slice();
        assert_eq!(read_frame(&mut from).expect("valid"), Some(request));
        assert_eq!(read_frame(&mut from).expect("valid"), Some(Request::Close));
        assert_eq!(read_frame::<Request>(&mut from).expect("valid"), None);
    }

    #[test]
    fn a_minimal_submit_needs_little() {
        let json = br#"{"type":"submit","id":1,"prompt":[5],"max_tokens":2,"later":true}"#;
        let request: Request = parse_frame(json).expect("unknown fields are passed over");
        let generate = Generate { prompt: vec![5], max_tokens: 2, ..Default::default() };
        assert_eq!(request, Request::Submit { id: 1, generate });
    }

    #[test]
    fn broken_frames_are_told_apart() {
        let read = |bytes: &[u8]| read_frame::<Reply>(&mut &bytes[..]).expect_err("broken");
        assert!(matches!(read(&[1, 0]), FrameError::Truncated { missing: 2 }));
        assert!(matches!(read(&[9, 0, 0, 0, b'{']), FrameError::Truncated { missing: 8 }));
        assert!(matches!(read(&[255; 8]), FrameError::TooLarge { .. }));
        let error = read(&[4, 0, 0, 0, b'{', b'"', 0xff, b'}']);
        assert!(matches!(error, FrameError::Invalid { .. }), "{error}");
        let nonsense = br#"{"type":"dance"}"#;
        let mut bytes = (nonsense.len() as u32).to_le_bytes().to_vec();
        bytes.extend(nonsense);
        assert!(read(&bytes).to_string().contains("dance"));
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_frame::<Request>(&mut bytes.as_slice());
            let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
            framed.extend(&bytes);
            let _ = read_frame::<Request>(&mut framed.as_slice());
        }
    }
}
