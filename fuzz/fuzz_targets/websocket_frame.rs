//! WebSocket frames and messages: what is read does not depend on how the bytes arrive, and no message
//! is larger than allowed.
#![no_main]

use lavalane_api::websocket::dialect::ClientMessage;
use lavalane_api::websocket::frames::{FrameReader, Incoming};
use libfuzzer_sys::fuzz_target;

const MESSAGE_BYTES_MAX: usize = 4096;

fn read(bytes: &[u8], step: usize) -> Vec<Incoming> {
    let mut reader = FrameReader::new(MESSAGE_BYTES_MAX);
    let mut read = Vec::new();
    for piece in bytes.chunks(step) {
        reader.push(piece);
        read.extend(std::iter::from_fn(|| reader.next()));
    }
    read
}

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(whole, read(bytes, 1));
    for incoming in whole {
        if let Incoming::Text(text) = incoming {
            assert!(text.len() <= MESSAGE_BYTES_MAX);
            let _ = ClientMessage::read(&text);
        }
    }
});
