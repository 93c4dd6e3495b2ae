//! Limits what one invocation may log, whatever items and records contain.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Maximum bytes of an invocation's lines about single items, over all namespaces.
const ALL: usize = 768 * 1024;
/// Maximum bytes of lines about the items of one namespace.
const EACH: usize = 64 * 1024;
/// Bytes of a line besides its texts: the timestamp, the level, the message, the request id, names
/// of fields, numbers.
const REST: usize = 500;

/// Maximum bytes of one text in a log line.
pub const SHOWN: usize = 1024;

/// The remaining bytes that one invocation may log about single items. Each namespace has its own
/// part, so one tenant's items do not displace the lines of another. Summaries are always logged.
#[derive(Debug)]
pub struct LogBudget(Mutex<Left>);

#[derive(Debug)]
struct Left {
    bytes: usize,
    /// Of one namespace.
    each: usize,
    used: HashMap<String, usize>,
}

impl Default for LogBudget {
    fn default() -> Self {
        Self(Mutex::new(Left { bytes: ALL, each: EACH, used: HashMap::new() }))
    }
}

impl LogBudget {
    /// Returns a budget without a bound: of a log that is the only place of what is in it.
    #[must_use]
    pub fn unlimited() -> Self {
        Self(Mutex::new(Left { bytes: usize::MAX, each: usize::MAX, used: HashMap::new() }))
    }

    /// Returns whether a line with these texts, about an item with the partition key `pk`, may be
    /// logged, and subtracts its bytes.
    #[must_use]
    pub fn allows(&self, pk: &str, texts: &[&str]) -> bool {
        let bytes =
            REST + texts.iter().map(|text| text.chars().map(escaped).sum::<usize>()).sum::<usize>();
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > left.bytes {
            return false;
        }
        let namespace = pk.split('/').next().unwrap_or_default();
        let used = left.used.get(namespace).copied().unwrap_or_default() + bytes;
        if used > left.each {
            return false;
        }
        left.bytes -= bytes;
        left.used.insert(namespace.to_owned(), used);
        true
    }
}

/// Returns `text`, or its beginning if it takes more than `most` bytes of a log line.
#[must_use]
pub fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    let mut left = most;
    for (at, char) in text.char_indices() {
        match left.checked_sub(escaped(char)) {
            Some(rest) => left = rest,
            None => return format!("{}... ({} bytes)", &text[..at], text.len()).into(),
        }
    }
    text.into()
}

/// Returns the beginning of `value` as text of at most `most` bytes in a log line. The rest is not
/// rendered.
#[must_use]
pub fn beginning(value: &impl fmt::Debug, most: usize) -> String {
    let mut first = Beginning { text: String::new(), left: most };
    // An error means that the text is full.
    if write!(first, "{value:?}").is_err() {
        first.text.push_str("...");
    }
    first.text
}

struct Beginning {
    text: String,
    left: usize,
}

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            self.left = self.left.checked_sub(escaped(char)).ok_or(fmt::Error)?;
            self.text.push(char);
        }
        Ok(())
    }
}

/// Returns the bytes that a character takes in a JSON string.
fn escaped(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        '\0'..='\x1f' => 6,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_takes_what_json_takes_for_it() {
        for char in (0..=0x2ff).chain([0x2028, 0x1_f600]).filter_map(char::from_u32) {
            let json = serde_json::to_string(&char).unwrap();
            assert!(escaped(char) >= json.len() - 2, "{json}");
        }
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_and_says_how_long_it_was() {
        assert_eq!(shorten("äöü", 6), "äöü");
        assert_eq!(shorten("äöü", 5), "äö... (6 bytes)");
        assert_eq!(shorten("\u{1}\u{2}", 7), "\u{1}... (2 bytes)");
        assert_eq!(beginning(&"\u{1}x", 1024), "\"\\u{1}x\"");
        assert_eq!(beginning(&vec![7; 1000], 10), "[7, 7, 7, ...");
    }

    #[test]
    fn a_namespace_has_a_part_of_the_budget_and_all_together_have_no_more_than_it() {
        let (budget, text) = (LogBudget::default(), "x".repeat(1000));
        let lines = |pk: &str| (0..1000).take_while(|_| budget.allows(pk, &[&text])).count();
        assert_eq!(lines("a/BUCKET#e#r#0"), EACH / (1000 + REST));
        assert_eq!((lines("a/BUCKET#e#r#1"), lines("b/BUCKET#e#r#0")), (0, EACH / (1000 + REST)));
        let others: usize = (0..100).map(|at| lines(&format!("c{at}/"))).sum();
        let all = (others + 2 * (EACH / (1000 + REST))) * (1000 + REST);
        assert!(all <= ALL && all > ALL - EACH, "{all}");
    }
}
