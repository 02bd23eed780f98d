//! JSON responses and errors as actix-web sends them.

use crate::error::{ApiError, ErrorKind};
use actix_web::http::{StatusCode, header};
use actix_web::{HttpRequest, HttpResponse, ResponseError};
use serde_json::Value;

/// A response with this JSON.
pub fn json(value: &Value) -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(value.to_string())
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.kind().status()
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code());
        if let Some(wait) = self.retry_after() {
            response.insert_header((header::RETRY_AFTER, wait.as_secs().max(1).to_string()));
        }
        if self.kind() == ErrorKind::InvalidApiKey {
            response.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        response.content_type("application/json").body(self.body().to_string())
    }
}

/// Answers a path that no route has.
pub async fn not_found(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let message = format!("there is no {} {}", request.method(), request.path());
    Err(ApiError::new(ErrorKind::NotFound, message))
}

/// Answers a path that has routes for other methods.
pub async fn method_not_allowed(request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let message = format!("{} does not take {}", request.path(), request.method());
    Err(ApiError::new(ErrorKind::MethodNotAllowed, message))
}
