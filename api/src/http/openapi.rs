//! `GET /openapi.json`: the description of every route, kept by hand beside this file. A test holds it
//! against the table of routes.

use actix_web::HttpResponse;

/// The document, without the server's version.
const DOCUMENT: &str = include_str!("openapi.json");

/// Answers with the document.
pub async fn openapi() -> HttpResponse {
    let document = DOCUMENT.replace("VERSION", env!("CARGO_PKG_VERSION"));
    HttpResponse::Ok().content_type("application/json").body(document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::server::ROUTES;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn the_document_and_the_table_of_routes_name_the_same_routes() {
        let document: Value = serde_json::from_str(DOCUMENT).expect("the document is JSON");
        let paths = document["paths"].as_object().expect("paths");
        let methods = |(path, item): (&String, &Value)| -> Vec<(String, String)> {
            let item = item.as_object().expect("a path item");
            item.keys().map(|method| (method.to_uppercase(), path.clone())).collect()
        };
        let documented: BTreeSet<(String, String)> = paths.iter().flat_map(methods).collect();
        let routes = ROUTES.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned()));
        assert_eq!(documented, routes.collect());
    }

    #[test]
    fn every_reference_in_the_document_leads_somewhere() {
        fn check(value: &Value, document: &Value) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        let pointer = reference.strip_prefix('#').expect("a local reference");
                        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
                    }
                    map.values().for_each(|value| check(value, document));
                }
                Value::Array(values) => values.iter().for_each(|value| check(value, document)),
                _ => {}
            }
        }
        let document: Value = serde_json::from_str(DOCUMENT).expect("the document is JSON");
        check(&document, &document);
    }
}
