//! Bodies of the generating endpoints: any bytes are read or refused, and a refusal names what it can.
#![no_main]

use lavalane_api::wire::chat::ChatRequest;
use lavalane_api::wire::completion::CompletionRequest;
use lavalane_api::wire::json;
use lavalane_api::wire::tokens::{TokenizeRequest, read_detokenize};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(body) = json::parse(bytes) else { return };
    if let Ok(request) = ChatRequest::read(&body) {
        assert!(!request.messages.is_empty() && request.common.choices >= 1);
    }
    if let Ok(request) = CompletionRequest::read(&body, 1000) {
        assert!(!request.prompts.is_empty() && request.common.tokens_max >= Some(1));
    }
    let _ = TokenizeRequest::read(&body);
    let _ = read_detokenize(&body, 1000);
});
