//! A value that an entry of a descriptor must have.

/// A value that an entry must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Any value.
    Any,
    /// This value.
    Exact(Box<[u8]>),
    /// The parts of a value, with anything between them.
    Parts(Vec<Box<[u8]>>),
}

impl Pattern {
    /// Returns the pattern of a text: each `*` stands for any text, also for none.
    pub(super) fn new(text: &str) -> Self {
        match text {
            "*" => Self::Any,
            _ if text.contains('*') => {
                let parts = text.split('*').map(|part| part.as_bytes().into());
                Self::Parts(parts.collect())
            }
            _ => Self::Exact(text.as_bytes().into()),
        }
    }

    /// Returns whether the value has this pattern.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => &**exact == value,
            Self::Parts(parts) => matches_parts(parts, value),
        }
    }
}

/// Returns whether the value begins with the first part, ends with the last, and has the others
/// between them in their order. The earliest place of each part leaves most for the others.
fn matches_parts(parts: &[Box<[u8]>], value: &[u8]) -> bool {
    let [first, middle @ .., last] = parts else {
        return false;
    };
    let Some(mut rest) = value.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last))
    else {
        return false;
    };
    for part in middle {
        if part.is_empty() {
            continue;
        }
        let Some(at) = rest.windows(part.len()).position(|window| window == &**part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_nothing_else_does() {
        let cases = [
            ("*", "", true),
            ("v*", "v", true),
            ("v*", "v1", true),
            ("v*", "1v", false),
            ("*.png", "a.png", true),
            ("*.png", ".pn", false),
            ("a*c", "ac", true),
            ("a*c", "abbc", true),
            ("a*c", "a", false),
            ("ab*ba", "aba", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("a.c", "abc", false),
            ("", "", true),
            ("", "a", false),
        ];
        for (pattern, value, is_matched) in cases {
            let found = Pattern::new(pattern).matches(value.as_bytes());
            assert_eq!(found, is_matched, "{pattern:?} on {value:?}");
        }
    }
}
