//! A WebSocket client of plain sockets.

use super::TestServer;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A WebSocket client.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    pub fn open(server: &TestServer) -> Self {
        Self::open_on(server.connect(), server)
    }

    /// Shakes hands on a connection.
    pub fn open_on(mut stream: TcpStream, server: &TestServer) -> Self {
        let request = format!(
            "GET /v1/stream HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            server.address
        );
        stream.write_all(request.as_bytes()).expect("the handshake is sent");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the handshake's answer");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        Self { stream }
    }

    /// The connection under the frames.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    pub fn send_frame(&mut self, opcode: u8, payload: &[u8]) {
        let mut frame = vec![0x80 | opcode, 0x80 | 127];
        frame.extend((payload.len() as u64).to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(payload);
        self.stream.write_all(&frame).expect("the frame is sent");
    }

    pub fn send(&mut self, message: Value) {
        self.send_frame(1, message.to_string().as_bytes());
    }

    pub fn read_frame(&mut self) -> (u8, Vec<u8>) {
        let mut bytes = [0; 2];
        self.stream.read_exact(&mut bytes).expect("a frame");
        let length = match bytes[1] {
            126 => {
                let mut long = [0; 2];
                self.stream.read_exact(&mut long).expect("a length");
                usize::from(u16::from_be_bytes(long))
            }
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).expect("a payload");
        (bytes[0] & 0x0f, payload)
    }

    pub fn event(&mut self) -> Value {
        let (opcode, payload) = self.read_frame();
        assert_eq!(opcode, 1);
        serde_json::from_slice(&payload).expect("JSON")
    }

    /// Reads events until `count` requests have ended.
    pub fn events_until_ended(&mut self, count: usize) -> Vec<Value> {
        let (mut events, mut ended) = (Vec::new(), 0);
        while ended < count {
            let event = self.event();
            let is_last =
                event["type"] == "done" || event["type"] == "cancelled" || event["ends_request"] == true;
            ended += usize::from(is_last);
            events.push(event);
        }
        events
    }
}
