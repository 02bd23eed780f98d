//! Reads WebSocket frames (RFC 6455) from a client's bytes, without any input or output of its own.
//!
//! It exists because a frame's announced length must never decide how much is kept in memory: the
//! payload of a message that is too large is dropped as it arrives, the client is told, and the
//! connection goes on.

use std::collections::VecDeque;

/// What the bytes held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A whole text message.
    Text(String),
    /// A message that cannot be used; the connection goes on.
    Unusable(Unusable),
    /// The peer asks for a pong with the same payload.
    Ping(Vec<u8>),
    /// The peer answers a ping.
    Pong,
    /// The peer closes.
    Close,
    /// The peer broke the protocol; nothing after it can be read.
    Broken(&'static str),
}

/// Why a message cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It is larger than allowed.
    #[error("the message has more than {limit} bytes")]
    TooLarge {
        /// The most that is taken.
        limit: usize,
    },
    /// It is binary.
    #[error("the message is binary; only text with JSON is understood")]
    Binary,
    /// It is text, but not UTF-8.
    #[error("the message is not valid UTF-8")]
    NotUtf8,
}

/// The largest payload of a control frame (RFC 6455, section 5.5).
const CONTROL_BYTES_MAX: u64 = 125;

/// The reader of one connection.
#[derive(Debug)]
pub struct FrameReader {
    message_bytes_max: usize,
    buffer: VecDeque<u8>,
    message: Option<Message>,
    frame: Option<Frame>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reading,
    Broken,
}

/// A message whose frames arrive.
#[derive(Debug)]
struct Message {
    kind: MessageKind,
    /// `None` once it is too large.
    bytes: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageKind {
    Text,
    Binary,
}

/// A frame whose payload arrives.
#[derive(Debug)]
struct Frame {
    role: FrameRole,
    place: FramePlace,
    mask: [u8; 4],
    /// How many bytes of the payload were read.
    read: u64,
    length: u64,
    /// A control frame's payload.
    control: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameRole {
    Data,
    Ping,
    Pong,
    Close,
}

/// Where a frame stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePlace {
    /// More frames of the message follow.
    Within,
    /// It is the message's last, or only one.
    Last,
}

impl FrameReader {
    /// A reader that takes messages of at most `message_bytes_max` bytes.
    pub fn new(message_bytes_max: usize) -> Self {
        let (buffer, message, frame) = (VecDeque::new(), None, None);
        Self { message_bytes_max, buffer, message, frame, state: State::Reading }
    }

    /// Takes in bytes. They are kept only until [`FrameReader::next`] has been called until `None`.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.state == State::Reading {
            self.buffer.extend(bytes);
        }
    }

    /// The next thing that the bytes held so far are.
    #[expect(clippy::should_implement_trait, reason = "more may follow after `None`")]
    pub fn next(&mut self) -> Option<Incoming> {
        loop {
            if self.state == State::Broken {
                return None;
            }
            if self.frame.is_none() {
                match self.head() {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(reason) => {
                        self.state = State::Broken;
                        self.buffer = VecDeque::new();
                        return Some(Incoming::Broken(reason));
                    }
                }
            }
            if !self.payload() {
                return None;
            }
            if let Some(incoming) = self.end_of_frame() {
                return Some(incoming);
            }
        }
    }

    /// Reads a frame's head; `false` while it is not whole.
    fn head(&mut self) -> Result<bool, &'static str> {
        let byte = |index: usize| self.buffer.get(index).copied();
        let (Some(first), Some(second)) = (byte(0), byte(1)) else { return Ok(false) };
        if first & 0x70 != 0 {
            return Err("reserved bits are set");
        }
        if second & 0x80 == 0 {
            return Err("a client's frame must be masked");
        }
        let length_bytes = match second & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let head_bytes = 2 + length_bytes + 4;
        if self.buffer.len() < head_bytes {
            return Ok(false);
        }
        let head: Vec<u8> = self.buffer.drain(..head_bytes).collect();
        let extended =
            head[2..2 + length_bytes].iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        let length = if length_bytes == 0 { u64::from(second & 0x7f) } else { extended };
        if length >> 63 != 0 {
            return Err("a length has its highest bit set");
        }
        let place = if first & 0x80 != 0 { FramePlace::Last } else { FramePlace::Within };
        let role = self.role(first & 0x0f, place, length)?;
        let mut mask = [0; 4];
        mask.copy_from_slice(&head[head_bytes - 4..]);
        self.frame = Some(Frame { role, place, mask, read: 0, length, control: Vec::new() });
        Ok(true)
    }

    fn role(&mut self, opcode: u8, place: FramePlace, length: u64) -> Result<FrameRole, &'static str> {
        let role = match opcode {
            0 if self.message.is_none() => return Err("a continuation without a beginning"),
            0 => return Ok(FrameRole::Data),
            1 | 2 if self.message.is_some() => return Err("a message begins within another"),
            1 | 2 => {
                let kind = if opcode == 1 { MessageKind::Text } else { MessageKind::Binary };
                self.message = Some(Message { kind, bytes: Some(Vec::new()) });
                return Ok(FrameRole::Data);
            }
            8 => FrameRole::Close,
            9 => FrameRole::Ping,
            10 => FrameRole::Pong,
            _ => return Err("an unknown opcode"),
        };
        if place != FramePlace::Last || length > CONTROL_BYTES_MAX {
            return Err("a control frame is fragmented or too long");
        }
        Ok(role)
    }

    /// Reads as much of the frame's payload as has arrived; whether that is all of it.
    fn payload(&mut self) -> bool {
        let Some(frame) = &mut self.frame else { return false };
        let count = (frame.length - frame.read).min(self.buffer.len() as u64);
        let limit = self.message_bytes_max;
        let arrived = self.buffer.drain(..count as usize);
        let start = frame.read;
        frame.read += count;
        let unmasked = arrived.zip(start..).map(|(byte, index)| byte ^ frame.mask[(index % 4) as usize]);
        match (&mut self.message, frame.role) {
            (Some(message), FrameRole::Data) => {
                let kept = message.bytes.as_ref().map_or(0, Vec::len) as u64;
                let rest = frame.length - start;
                if kept.saturating_add(rest) > limit as u64 {
                    message.bytes = None;
                }
                match &mut message.bytes {
                    Some(bytes) => bytes.extend(unmasked),
                    None => drop(unmasked),
                }
            }
            _ => frame.control.extend(unmasked),
        }
        frame.read == frame.length
    }

    fn end_of_frame(&mut self) -> Option<Incoming> {
        let frame = self.frame.take()?;
        match frame.role {
            FrameRole::Ping => Some(Incoming::Ping(frame.control)),
            FrameRole::Pong => Some(Incoming::Pong),
            FrameRole::Close => Some(Incoming::Close),
            FrameRole::Data if frame.place == FramePlace::Within => None,
            FrameRole::Data => {
                let message = self.message.take()?;
                Some(match (message.kind, message.bytes) {
                    (_, None) => Incoming::Unusable(Unusable::TooLarge { limit: self.message_bytes_max }),
                    (MessageKind::Binary, Some(_)) => Incoming::Unusable(Unusable::Binary),
                    (MessageKind::Text, Some(bytes)) => {
                        String::from_utf8(bytes).map_or(Incoming::Unusable(Unusable::NotUtf8), Incoming::Text)
                    }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [7, 99, 200, 31];
        let mut bytes = vec![first];
        match payload.len() {
            length @ 0..=125 => bytes.push(0x80 | length as u8),
            length @ 126..=65535 => {
                bytes.push(0x80 | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            length => {
                bytes.push(0x80 | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(mask);
        bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    /// Asserts what a stream of bytes holds, read whole and byte by byte.
    fn check(bytes: &[u8], expected: &[Incoming]) {
        for step in [bytes.len().max(1), 1] {
            let mut reader = FrameReader::new(1000);
            let mut read = Vec::new();
            for piece in bytes.chunks(step) {
                reader.push(piece);
                read.extend(std::iter::from_fn(|| reader.next()));
            }
            assert_eq!(read, expected, "in steps of {step}");
        }
    }

    #[test]
    fn whole_and_fragmented_messages_are_read_with_control_frames_between() {
        let mut bytes = frame(0x81, b"one");
        bytes.extend(frame(0x01, "tw\u{f6}".as_bytes()));
        bytes.extend(frame(0x89, b"?"));
        bytes.extend(frame(0x80, &[b'x'; 300]));
        bytes.extend(frame(0x8a, b""));
        bytes.extend(frame(0x88, b""));
        let expected = [
            Incoming::Text("one".to_owned()),
            Incoming::Ping(b"?".to_vec()),
            Incoming::Text(format!("tw\u{f6}{}", "x".repeat(300))),
            Incoming::Pong,
            Incoming::Close,
        ];
        check(&bytes, &expected);
    }

    #[test]
    fn unusable_messages_are_told_and_the_next_one_is_read() {
        let too_large = Incoming::Unusable(Unusable::TooLarge { limit: 1000 });
        let mut bytes = frame(0x81, &[b'x'; 70_000]);
        bytes.extend(frame(0x01, &[b'x'; 900]));
        bytes.extend(frame(0x80, &[b'x'; 101]));
        bytes.extend(frame(0x82, b"\x00"));
        bytes.extend(frame(0x81, b"\xff"));
        bytes.extend(frame(0x81, b"on"));
        let expected = [
            too_large.clone(),
            too_large,
            Incoming::Unusable(Unusable::Binary),
            Incoming::Unusable(Unusable::NotUtf8),
            Incoming::Text("on".to_owned()),
        ];
        check(&bytes, &expected);
    }

    #[test]
    fn an_announced_length_reserves_nothing() {
        let mut reader = FrameReader::new(1000);
        reader.push(&[0x81, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4]);
        for _ in 0..100 {
            reader.push(&[0; 10_000]);
            assert_eq!(reader.next(), None);
            assert!(reader.buffer.is_empty());
        }
    }

    #[test]
    fn a_broken_protocol_ends_the_reading() {
        for bytes in [
            &[0x81, 0x01, b'x'][..],
            &[0xc1, 0x80, 0, 0, 0, 0],
            &[0x80, 0x80, 0, 0, 0, 0],
            &[0x83, 0x80, 0, 0, 0, 0],
            &[0x09, 0x80, 0, 0, 0, 0],
            &[0x81, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let mut reader = FrameReader::new(1000);
            reader.push(bytes);
            assert!(matches!(reader.next(), Some(Incoming::Broken(_))), "{bytes:?}");
            reader.push(&frame(0x81, b"later"));
            assert_eq!(reader.next(), None);
        }
    }
}
