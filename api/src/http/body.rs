//! Reads request bodies within a bound of bytes and of time.

use crate::error::{ApiError, ErrorKind};
use crate::http::state::HttpSettings;
use crate::wire::json;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut, Payload};
use actix_web::{HttpRequest, error::PayloadError};
use futures_util::{Stream, StreamExt};
use serde_json::Value;

/// How many bytes of a refused body are still read, so that a client which sends before it reads gets
/// the answer instead of a reset connection.
const DISCARDED_BYTES_MAX: usize = 64 << 20;

/// Reads and parses a JSON body.
///
/// # Errors
/// It is too large, too slow, broken, or not JSON.
pub async fn read_json(
    request: &HttpRequest,
    payload: Payload,
    settings: &HttpSettings,
) -> Result<Value, ApiError> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let reading = read(payload, announced.unwrap_or(0), settings.body_bytes_max);
    match tokio::time::timeout(settings.body_time_max, reading).await {
        Ok(body) => json::parse(&body?),
        Err(_) => {
            let seconds = settings.body_time_max.as_secs_f32();
            let message = format!("the body did not arrive within {seconds} s");
            Err(ApiError::new(ErrorKind::BodyTimeout, message))
        }
    }
}

async fn read(
    mut payload: impl Stream<Item = Result<Bytes, PayloadError>> + Unpin,
    announced: usize,
    bytes_max: usize,
) -> Result<Bytes, ApiError> {
    let mut body = BytesMut::new();
    let mut received = 0_usize;
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| {
            ApiError::new(ErrorKind::BodyBroken, format!("the body did not arrive whole: {error}"))
        })?;
        received = received.saturating_add(chunk.len());
        if received.max(announced) <= bytes_max {
            body.extend_from_slice(&chunk);
        } else if received > DISCARDED_BYTES_MAX {
            break;
        }
    }
    match received.max(announced) {
        size if size > bytes_max => {
            let message = format!("the body has {size} bytes or more; at most {bytes_max} are taken");
            Err(ApiError::new(ErrorKind::TooLarge, message))
        }
        _ => Ok(body.freeze()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    fn check(chunks: &[usize], announced: usize, expected: Result<usize, ErrorKind>) {
        let chunks = chunks.iter().map(|length| Ok(Bytes::from(vec![b'x'; *length])));
        let body = actix_web::rt::System::new().block_on(read(stream::iter(chunks), announced, 10));
        assert_eq!(body.map(|body| body.len()).map_err(|error| error.kind()), expected);
    }

    #[test]
    fn a_body_is_whole_up_to_the_limit_and_refused_above_it() {
        check(&[4, 6], 10, Ok(10));
        check(&[4, 7], 0, Err(ErrorKind::TooLarge));
        check(&[4], 11, Err(ErrorKind::TooLarge));
        check(&[], 0, Ok(0));
    }
}
