//! `{% generation %}` markers, which some templates carry for training: they mark the model's own part
//! and print nothing. minijinja does not know the tag.

/// Turns each marker into an `if` that always holds, which prints the same and keeps the marker's
/// white-space signs (`{%-`, `-%}`).
pub(super) fn strip_generation_markers(source: &str) -> String {
    let mut stripped = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        stripped.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        match marker(tag) {
            Some((word, replacement)) => stripped.push_str(&tag.replacen(word, replacement, 1)),
            None => stripped.push_str(tag),
        }
        rest = after;
    }
    stripped.push_str(rest);
    stripped
}

/// The marker's word and what takes its place.
fn marker(tag: &str) -> Option<(&'static str, &'static str)> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    match inner.trim() {
        "generation" => Some(("generation", "if true")),
        "endgeneration" => Some(("endgeneration", "endif")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        assert_eq!(strip_generation_markers(source), expected);
    }

    #[test]
    fn markers_become_blocks_that_always_hold() {
        check("a{% generation %}b{% endgeneration %}c", "a{% if true %}b{% endif %}c");
        check("{%- generation -%}b{%-endgeneration+%}", "{%- if true -%}b{%-endif+%}");
    }

    #[test]
    fn other_tags_stay_as_they_are() {
        for source in ["", "{% if generation %}{% endif %}", "{{ generation }}", "a{% x", "{%%}", "é{%-%}"] {
            check(source, source);
        }
    }
}
